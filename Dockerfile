# The service with its models built in.
#
#   docker build -t onnx-median .
#   docker run --rm -p 8000:8000 --read-only --tmpfs /tmp onnx-median
#
# Every option is an environment variable: -e MEDIAN_WORKERS=2 -e MEDIAN_API_KEY=...

FROM python:3.11.13-slim-bookworm AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /src
RUN python -m venv /opt/median
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY exporter exporter
COPY onnx_median onnx_median
COPY service service
RUN /opt/median/bin/pip install -c constraints.txt setuptools
RUN /opt/median/bin/pip install -c constraints.txt --no-build-isolation ".[service,fast]"
RUN /opt/median/bin/python -m exporter --d 2048 --construction radix --profile fused --tune latency --out /models \
 && /opt/median/bin/python -m exporter --window 3x3 --dtype uint8 --out /models \
 && /opt/median/bin/python -m exporter --window 5x5 --dtype uint8 --out /models
# The service builds models for longer vectors, for which scipy's sparse matrices are all it needs of scipy; and it needs no
# installer, no tests and no sources of compiled code.
RUN /opt/median/bin/pip uninstall -y setuptools pip \
 && cd /opt/median/lib/python3*/site-packages \
 && find scipy -mindepth 1 -maxdepth 1 -type d ! -name _lib ! -name sparse -exec rm -r {} + \
 && rm -r scipy.libs scipy/sparse/linalg scipy/sparse/csgraph && rm -rf numpy/distutils \
 && find /opt/median -type d \( -name tests -o -path '*/onnx/backend/test' \) -prune -exec rm -r {} + \
 && find /opt/median -type f -regex '.*\.\(pyi\|pyx\|pxd\|c\|cc\|cpp\|h\|hpp\)' -delete

FROM python:3.11.13-slim-bookworm
COPY --from=build /opt/median /opt/median
COPY --from=build /models /models
RUN useradd --system --uid 10001 --no-create-home --shell /usr/sbin/nologin median
USER 10001
ENV PATH=/opt/median/bin:$PATH PYTHONDONTWRITEBYTECODE=1 MEDIAN_MODELS=/models MEDIAN_HOST=0.0.0.0 MEDIAN_PORT=8000
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=20s CMD ["/opt/median/bin/python", "-c", "import os, urllib.request; urllib.request.urlopen('http://127.0.0.1:' + os.environ['MEDIAN_PORT'] + '/readyz', timeout=3)"]
ENTRYPOINT ["/opt/median/bin/python", "-m", "service"]
