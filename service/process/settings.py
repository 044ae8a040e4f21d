"""The options of the service. A field here is also a flag of `python -m service` and a variable `MEDIAN_<NAME>`.

uvicorn starts worker processes without arguments, so they read the settings from the environment.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import Field, dataclass, field, fields, replace
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any

from exporter.version import __version__

PREFIX = "MEDIAN_"
MODELS = Path("models")
SMALLEST = 1e-6  # of options that must be positive
LARGEST = 1e15
MOST_THREADS = 1024  # more than any machine needs; starting a million takes minutes
MOST_LENGTH = 1 << 22  # a model for any rank has up to four times as many entries, and counts up to 2^24 are exact
LEVELS = ("debug", "info", "warning", "error")
YES, NO = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


def _option(default: Any, text: str, least: float | None = None, most: float = LARGEST, *, flag: bool = True) -> Any:
    return field(default=default, metadata={"help": text, "flag": flag, "least": least, "most": most})


@dataclass(frozen=True)
class Settings:
    """All options. The secret `api_key` comes from the environment only, because `ps` shows arguments."""

    models: Path = _option(MODELS, "folder with manifest.json and the .onnx files")  # noqa: RUF009, a frozen default
    host: str = _option("127.0.0.1", "address to listen on")
    port: int = _option(8000, "port to listen on; 0 takes a free one", 0, 65535)
    workers: int = _option(1, "worker processes", 1, MOST_THREADS)
    threads: int = _option(
        0, "inference threads per worker; 0 divides the processors among the workers", 0, MOST_THREADS
    )
    build: bool = _option(True, "build missing models: the default model, and models for long vectors")
    build_into: str = _option("", "folder that keeps models built on request; without it they are removed at the end")
    max_length: int = _option(
        2**20, "longest vector for which models are built; longer vectors need a loaded model", 1, MOST_LENGTH
    )
    max_batch: int = _option(64, "largest number of rows in one onnxruntime call; 1 turns batching off", 1)
    inline_ms: float = _option(2.0, "calls expected to be shorter run in the event loop, without a thread", 0)
    cache_kib: int = _option(1024, "working set of one onnxruntime call; larger batches are cut", 1)
    queue: int = _option(8192, "vectors that may wait; beyond that 429", 1)
    max_vectors: int = _option(4096, "vectors in one request", 1)
    max_body_mib: float = _option(64.0, "size of a request body", SMALLEST)
    max_memory_mib: float = _option(
        1024.0, "memory of all requests under way, above the idle process; beyond that 503", SMALLEST
    )
    max_head_kib: float = _option(32.0, "size of a request's head; beyond that 431", SMALLEST)
    max_connections: int = _option(1000, "connections per worker; beyond that 503", 1)
    timeout_s: float = _option(
        30.0, "longest time one request may take, and longest wait for a client that does not read", SMALLEST
    )
    head_timeout_s: float = _option(10.0, "longest time the head of a request may take; then 408", SMALLEST)
    idle_s: float = _option(5.0, "how long a connection is kept after an answer", SMALLEST)
    drain_s: float = _option(1.0, "time between SIGTERM, which ends readiness, and closing the port", 0)
    log_level: str = _option("info", f"{', '.join(LEVELS)}; info writes a line for every request")
    api_key: str = _option("", "key every request must carry (X-API-Key or Authorization: Bearer)", flag=False)
    runtime_dir: str = _option("", "scratch folder shared by the workers; made when empty", flag=False)

    def __post_init__(self) -> None:
        for option in fields(self):
            value, least, most = getattr(self, option.name), option.metadata["least"], option.metadata["most"]
            if least is not None and not least <= value <= most:
                raise ValueError(f"{option.name} must be {least:g} to {most:g}, not {value}")
        if self.api_key.strip() != self.api_key or not self.api_key.isprintable():
            raise ValueError("api_key must be printable, with no space around it: a header could not carry it")
        if self.log_level not in LEVELS:
            raise ValueError(f"log_level must be one of {', '.join(LEVELS)}, not {self.log_level!r}")

    @cached_property
    def max_body(self) -> int:
        """The body limit in bytes."""
        return int(self.max_body_mib * 2**20)

    @cached_property
    def max_memory(self) -> int:
        """The limit of the memory of all requests in bytes."""
        return int(self.max_memory_mib * 2**20)

    @property
    def built(self) -> list[Path]:
        """The folder for models built on request: a folder that keeps them, or the scratch folder."""
        if self.build_into:
            return [Path(self.build_into)]
        return [Path(self.runtime_dir) / "models"] if self.runtime_dir else []

    @property
    def folders(self) -> list[Path]:
        """The folders with models."""
        return [self.models, *(folder for folder in self.built if folder != self.models)]

    @property
    def inference_threads(self) -> int:
        """Threads per worker: the option, or a fair share of the processors of this process."""
        return self.threads or max(1, len(os.sched_getaffinity(0)) // self.workers)

    @classmethod
    def from_env(cls, env: Mapping[str, str] | None = None) -> Settings:
        """Settings from `MEDIAN_...` variables. An error names the invalid value."""
        source = {
            name: text for name, text in (os.environ if env is None else env).items() if not _service_link(name, text)
        }
        known = [PREFIX + option.name.upper() for option in fields(cls)]
        if unknown := sorted(name for name in source if name.startswith(PREFIX) and name not in known):
            near = get_close_matches(unknown[0], known, 1)
            meant = f"; {near[0]} is meant?" if near else ""
            raise ValueError(f"{unknown[0]} in the environment is not an option{meant}")
        texts = {option: source.get(PREFIX + option.name.upper()) for option in fields(cls)}
        return cls(**{option.name: _parse(option, text) for option, text in texts.items() if text is not None})

    @classmethod
    def from_args(cls, arguments: Sequence[str] | None = None) -> Settings:
        """Settings from the command line, with the environment as defaults. An error is one line, not a traceback."""
        parser = argparse.ArgumentParser(
            prog="python -m service", description="Serve medians from ReLU networks over HTTP."
        )
        parser.add_argument("--version", action="version", version=f"onnx-median {__version__}")
        try:
            from_env = cls.from_env()
            for option in fields(cls):
                if not option.metadata["flag"]:
                    continue
                name, default = "--" + option.name.replace("_", "-"), getattr(from_env, option.name)
                text = f"{option.metadata['help']} [{PREFIX}{option.name.upper()}, {default}]".replace("%", "%%")
                if isinstance(option.default, bool):
                    parser.add_argument(name, action=argparse.BooleanOptionalAction, default=default, help=text)
                else:
                    parser.add_argument(name, type=type(option.default), default=default, help=text, metavar="X")
            return replace(from_env, **vars(parser.parse_args(arguments)))
        except ValueError as error:
            parser.error(str(error))

    def to_env(self) -> dict[str, str]:
        """The same settings as environment variables, for worker processes."""
        return {PREFIX + option.name.upper(): str(getattr(self, option.name)) for option in fields(self)}


LINK = re.compile(r"MEDIAN_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT(_[0-9]+_(TCP|UDP|SCTP)(_[A-Z]+)?)?)")


def _service_link(name: str, text: str) -> bool:
    """True for variables that Kubernetes sets for a Service called `median`, such as MEDIAN_PORT=tcp://10.0.0.1:80."""
    return LINK.fullmatch(name) is not None and (name != "MEDIAN_PORT" or "://" in text)


def _parse(option: Field[Any], text: str) -> Any:
    kind: Any = type(option.default)
    try:
        return (*NO, *YES).index(text.lower()) >= len(NO) if kind is bool else kind(text)
    except ValueError:
        name = PREFIX + option.name.upper()
        raise ValueError(f"{name}={text!r} is not a valid {kind.__name__}") from None
