# make demo: export d = 2048, serve it, compare with numpy.median.   make test: everything a normal change needs.
# make test-all: the slow tests as well.   All of them set up .venv from nothing but Python 3.11+; versions are pinned in constraints.txt.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SETUP := $(VENV)/.installed
PIP := $(BIN)/python -m pip --disable-pip-version-check -q

HEAVY := .venv-runtimes
VERIFIERS := .venv-verifiers
SCALE := .venv-scale
PAGE := .venv-page
TORCH := .venv-torch
CORPUS := .venv-corpus
FHE := .venv-fhe
DOCS := .venv-docs
NPU := .venv-npu
# also where a test or a benchmark imports onnxruntime before exporter
export ORT_DISABLE_TELEMETRY := 1
# every process that a test starts would compile our modules again
unexport PYTHONDONTWRITEBYTECODE
.PHONY: setup demo test test-all lint types tests slow torture mutants runtimes verifiers scale torch corpus npu fhe versions dist docs proofs models browser page vendor clean
setup: $(SETUP)

$(SETUP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed, this is %d.%d: set PYTHON=..." % sys.version_info[:2] if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(PIP) install -c constraints.txt setuptools
	$(PIP) install -c constraints.txt --no-build-isolation -e '.[dev]'
	@touch $@

# Export, serve, compare, stop.
demo: $(SETUP)
	$(BIN)/python -m exporter --d 2048 --out demo/models
	$(BIN)/python -m exporter --d 2048 --construction radix --profile fused --optimize-for latency --out demo/models
	$(BIN)/python -m exporter filter --window 3x3 --dtype uint8 --out demo/models
	$(BIN)/python examples/demo.py demo/models

# mypy works beside the tests.
test: lint
	@$(MAKE) --no-print-directory -k -j 2 types tests

test-all: test
	@$(MAKE) --no-print-directory slow
	@$(MAKE) --no-print-directory versions
	@$(MAKE) --no-print-directory dist
	@$(MAKE) --no-print-directory docs

lint: $(SETUP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(SETUP)
	$(BIN)/mypy

tests: $(SETUP)
	$(BIN)/pytest -q -n auto --dist worksteal

# What takes long by nature or tries every case of a product: tests/slow, and tests marked `slow`.
slow: $(SETUP)
	$(BIN)/pytest -q -n auto --dist worksteal -m slow

# Faults and abuse of a running service for a quarter of an hour at most; `make slow` has the same for seconds.
# TORTURE_SEED=... is another run, TORTURE_SEED=random a new one.
torture: $(SETUP)
	TORTURE_SECONDS=$${TORTURE_SECONDS:-80} timeout 900 $(BIN)/pytest -q -m slow tests/slow/torture

# Small changes of the code that no test notices, as many as fit in ten minutes; PATHS=... and ARGS="--seconds 60 --seed 1".
mutants: $(SETUP)
	$(BIN)/python -m tests.mutants $(PATHS) $(ARGS)

# The conformance matrix over other runtimes, in an environment of its own: models/RUNTIMES.md and models/runtimes.json.
runtimes: $(SETUP) $(HEAVY)/.installed browser
	@command -v chromium > /dev/null || { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium; }
	$(HEAVY)/bin/python -m pytest -q -c tests/runtimes/pytest.ini tests/runtimes/test_page.py tests/runtimes/test_tflite.py tests/runtimes/test_qnn.py tests/runtimes/test_verifier.py
	$(BIN)/python -m tests.runtimes.matrix

$(HEAVY)/.installed: tests/runtimes/requirements.txt tests/runtimes/constraints.txt tests/runtimes/package.json
	$(PYTHON) -m venv $(HEAVY)
	$(HEAVY)/bin/python -m pip --disable-pip-version-check -q install -r tests/runtimes/requirements.txt -c tests/runtimes/constraints.txt
	cp tests/runtimes/package.json $(HEAVY)/
	ONNXRUNTIME_NODE_INSTALL=skip npm install --prefix $(HEAVY) --no-package-lock --no-audit --no-fund --silent
	@touch $@

# How far Marabou and vibecheck get up the benchmark (the table of docs/verification.md), in an environment of its own.
verifiers: $(SETUP) $(VERIFIERS)/.installed
	rm -rf $(VERIFIERS)/benchmark && $(BIN)/python -m exporter benchmark --seed 1 --out $(VERIFIERS)/benchmark
	OMP_NUM_THREADS=1 $(VERIFIERS)/bin/python -m tests.runtimes.baseline $(VERIFIERS)/benchmark $(ARGS)

$(VERIFIERS)/.installed: tests/runtimes/verifiers.txt
	$(PYTHON) -m venv $(VERIFIERS)
	$(VERIFIERS)/bin/python -m pip --disable-pip-version-check -q install -r tests/runtimes/verifiers.txt
	@touch $@

# What goes beyond one machine: tables on a cluster simulated on one and against other engines, every command of docs/scale.md, and
# the schemas of KServe, in an environment of its own.
scale: $(SCALE)/.installed
	RAY_raylet_start_wait_time_s=300 $(SCALE)/bin/python -m pytest -c tests/scale/pytest.ini tests/scale tests/service/tables
	$(SCALE)/bin/python tests/benchmarks/bench_tables.py --share 0.01
	$(SCALE)/bin/python tests/benchmarks/bench_vector.py --entries 1000000

# kserve for its schemas alone: what it depends on contradicts ours
$(SCALE)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(SCALE)
	$(SCALE)/bin/python -m pip --disable-pip-version-check -q install -c constraints.txt setuptools
	$(SCALE)/bin/python -m pip --disable-pip-version-check -q install -c constraints.txt --no-build-isolation \
	  -e '.[dev,ray]'
	$(SCALE)/bin/python -m pip --disable-pip-version-check -q install -c constraints.txt --no-deps kserve
	@touch $@

# onnxruntime-web beside the page models/browser/index.html, from npm's package
browser: $(HEAVY)/.installed
	mkdir -p models/browser/ort
	cp $(addprefix $(HEAVY)/node_modules/onnxruntime-web/dist/,ort.wasm.min.mjs ort-wasm-simd-threaded.mjs ort-wasm-simd-threaded.wasm) models/browser/ort/

# The service's page in a real browser: every view, uploads, errors, keyboard alone, dark, 360 pixels. SHOTS=DIR takes pictures.
page: $(SETUP) $(PAGE)/.installed
	@command -v chromium > /dev/null || { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium; } \
	  || { echo "make page needs a browser, and may not install one here: install Debian's package chromium"; exit 1; }
	$(PAGE)/bin/python -m pytest -q -c tests/page/pytest.ini tests/page

$(PAGE)/.installed: tests/page/requirements.txt
	$(PYTHON) -m venv $(PAGE)
	$(PAGE)/bin/python -m pip --disable-pip-version-check -q install -r tests/page/requirements.txt
	@touch $@

# The page's reader of Parquet files, bundled from npm's packages at the versions of tests/page/package.json.
vendor:
	mkdir -p $(PAGE)/vendor && cp tests/page/package.json tests/page/parquet.js $(PAGE)/vendor/
	npm install --prefix $(PAGE)/vendor --no-package-lock --no-audit --no-fund --silent
	$(PAGE)/vendor/node_modules/.bin/esbuild $(PAGE)/vendor/parquet.js --bundle --minify --format=esm --legal-comments=none \
	  --banner:js="// hyparquet and fzstd, see LICENSES.txt" --outfile=service/page/vendor/parquet.js
	cat tests/page/licenses.txt $(addprefix $(PAGE)/vendor/node_modules/,hyparquet/LICENSE fzstd/LICENSE) > service/page/vendor/LICENSES.txt

# Exports of torch and kornia without TopK, and networks as modules, in an environment of its own.
torch: $(TORCH)/.installed
	$(TORCH)/bin/python -m pytest -q tests/torch

$(TORCH)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(TORCH)
	$(TORCH)/bin/python -m pip --disable-pip-version-check -q install -c constraints.txt torch==2.13.0 onnxscript==0.7.2 kornia==0.9.0 \
	  opencv-python-headless pytest setuptools
	$(TORCH)/bin/python -m pip --disable-pip-version-check -q install -c constraints.txt --no-build-isolation -e '.[rewrite]'
	@touch $@

# Detectors, routers and classifiers with a TopK, exported with random weights: whole models in $(CORPUS)/models, their heads in
# tests/models, and the table of docs/rewrite.md.
corpus: $(SETUP) $(CORPUS)/.installed
	$(CORPUS)/bin/python -m tests.corpus.make $(CORPUS)/models
	$(BIN)/python tests/benchmarks/bench_rewrite.py --table models --models $(CORPUS)/models --rounds 15

$(CORPUS)/.installed: tests/corpus/requirements.txt
	$(PYTHON) -m venv $(CORPUS)
	$(CORPUS)/bin/python -m pip --disable-pip-version-check -q install -r tests/corpus/requirements.txt
	@touch $@

# Rockchip's compiler and its simulator on rewritten models, in an environment of its own (Linux on x86-64, 6 GB).
npu: $(SETUP) $(NPU)/.installed
	$(NPU)/bin/python -m pytest -q -c tests/npu/pytest.ini tests/npu

$(NPU)/.installed: tests/npu/requirements.txt
	$(PYTHON) -m venv $(NPU)
	$(NPU)/bin/python -m pip --disable-pip-version-check -q install -r tests/npu/requirements.txt
	@touch $@

# The service started for real with the lowest versions pyproject.toml declares, and with the highest there are.
versions:
	for which in lowest highest; do \
	  rm -rf .venv-$$which && $(PYTHON) -m venv .venv-$$which && \
	  $(PYTHON) -m tests.versions.requirements $$which > .venv-$$which/requirements.txt && \
	  .venv-$$which/bin/python -m pip --disable-pip-version-check -q install -U -r .venv-$$which/requirements.txt && \
	  .venv-$$which/bin/python -m tests.versions.start || exit 1; done

# Wheel and source archive in dist/, checked by twine; the wheel is then installed in an empty environment and used.
dist:
	rm -rf dist .venv-dist && $(PYTHON) -m venv .venv-dist && $(PYTHON) -m venv .venv-dist/empty
	.venv-dist/bin/python -m pip --disable-pip-version-check -q install -c constraints.txt build twine setuptools
	.venv-dist/bin/python -m build -q --no-isolation --outdir dist .
	.venv-dist/bin/twine check --strict dist/*
	.venv-dist/empty/bin/python -m pip --disable-pip-version-check -q install -c constraints.txt dist/*.whl
	cd .venv-dist && empty/bin/python ../tests/versions/installed.py && empty/bin/onnx-median --version

# The documentation as a site in site/: every page and link is checked, and the reference is made from the code.
docs: $(SETUP) $(DOCS)/.installed
	$(BIN)/python docs/reference.py
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build -q

$(DOCS)/.installed: docs/requirements.txt
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python -m pip --disable-pip-version-check -q install -r docs/requirements.txt
	@touch $@

# Medians of encrypted numbers, and their bootstraps beside other ways, in an environment of its own (Python 3.11 or 3.12).
fhe: $(FHE)/.installed
	$(FHE)/bin/python -m pytest -q -c tests/fhe/pytest.ini tests/fhe
	$(FHE)/bin/python -W ignore -m tests.fhe.rivals $(ARGS)

$(FHE)/.installed: tests/fhe/requirements.txt
	@$(PYTHON) -c 'import sys; sys.exit("concrete-python needs Python 3.11 or 3.12, this is %d.%d: set PYTHON=..." % sys.version_info[:2] if sys.version_info >= (3, 13) else 0)'
	$(PYTHON) -m venv $(FHE)
	$(FHE)/bin/python -m pip --disable-pip-version-check -q install -r tests/fhe/requirements.txt
	@touch $@

# Coq checks the proofs of proofs/ and runs their networks beside ours.
proofs: $(SETUP)
	@command -v coqc > /dev/null || { apt-get update -qq && apt-get install -y -qq --no-install-recommends coq libcoq-mathcomp-algebra; } \
	  || { echo "make proofs needs Coq, and may not install it here: install Debian's packages coq and libcoq-mathcomp-algebra"; exit 1; }
	$(BIN)/pytest -q -m slow tests/slow/test_proofs.py
	cd proofs && for name in radix run zero_one; do coqc -q -w none $$name.v || exit 1; done

# The committed reference models; tests hold them to what the exporter writes.
models: $(SETUP)
	rm -rf models/reference
	$(BIN)/python -m tests.reference models/reference

clean:
	rm -rf proofs/*.vo* proofs/*.glob proofs/.*.aux $(VENV) $(HEAVY) $(VERIFIERS) $(SCALE) $(PAGE) $(TORCH) $(FHE) $(DOCS) $(NPU) site .venv-lowest .venv-highest .venv-dist dist build *.egg-info .pytest_cache .mypy_cache .ruff_cache
