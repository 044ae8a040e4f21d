"""The options of the service. A field here is also a flag of `python -m service` and a variable `MEDIAN_<NAME>`.

uvicorn starts worker processes without arguments, so they read the settings from the environment.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from functools import cached_property
from math import inf
from pathlib import Path
from typing import Any

from exporter.version import __version__

PREFIX = "MEDIAN_"
MODELS = Path("models")
SMALLEST = 1e-6  # of options that must be positive
MOST_THREADS = 1024  # more than any machine needs; starting a million takes minutes

MOST_LENGTH = 1 << 22  # a model for any rank has up to four times as many entries, and counts up to 2^24 are exact


def _option(default: Any, text: str, least: float | None = None, *, flag: bool = True) -> Any:
    return field(default=default, metadata={"help": text, "flag": flag, "least": least})


@dataclass(frozen=True)
class Settings:
    """All options. The secret `api_key` comes from the environment only, because `ps` shows arguments."""

    models: Path = _option(MODELS, "folder with manifest.json and the .onnx files")  # noqa: RUF009, a frozen default
    host: str = _option("127.0.0.1", "address to listen on")
    port: int = _option(8000, "port to listen on; 0 takes a free one")
    workers: int = _option(1, "worker processes", 1)
    threads: int = _option(0, "inference threads per worker; 0 divides the processors among the workers", 0)
    build: bool = _option(True, "build missing models: the default model, and models for long vectors")
    build_into: str = _option("", "folder that keeps models built on request; without it they are removed at the end")
    max_length: int = _option(2**20, "longest vector for which models are built; longer vectors need a loaded model", 1)
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
    log_level: str = _option("info", "debug, info, warning or error; info writes a line for every request")
    api_key: str = _option("", "key every request must carry (X-API-Key or Authorization: Bearer)", flag=False)
    runtime_dir: str = _option("", "scratch folder shared by the workers; made when empty", flag=False)

    def __post_init__(self) -> None:
        for option in fields(self):
            value, least = getattr(self, option.name), option.metadata["least"]
            if least is not None and not least <= value < inf:
                raise ValueError(f"{option.name} must be at least {least:g} and finite, not {value}")
        for name in ("workers", "threads"):
            if getattr(self, name) > MOST_THREADS:
                raise ValueError(f"{name} must be at most {MOST_THREADS}, not {getattr(self, name)}")
        if self.max_length > MOST_LENGTH:
            raise ValueError(f"max_length must be at most {MOST_LENGTH}, not {self.max_length}")
        if self.api_key.strip() != self.api_key or not self.api_key.isprintable():
            raise ValueError("api_key must be printable, with no space around it: a header could not carry it")
        if not 0 <= self.port <= 65535:
            raise ValueError(f"port must be 0 to 65535, not {self.port}; 0 takes a free one")
        if self.log_level not in ("debug", "info", "warning", "error"):
            raise ValueError(f"log_level must be debug, info, warning or error, not {self.log_level!r}")

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
        values: dict[str, Any] = {}
        for option in fields(cls):
            text = source.get(PREFIX + option.name.upper())
            if text is not None:
                try:
                    values[option.name] = _parse(text, option.default)
                except ValueError:
                    kind = type(option.default).__name__
                    raise ValueError(f"{PREFIX}{option.name.upper()}={text!r} is not a valid {kind}") from None
        return cls(**values)

    @classmethod
    def from_args(cls, arguments: Sequence[str] | None = None) -> Settings:
        """Settings from the command line, with the environment as defaults. An error is one line, not a traceback."""
        parser = argparse.ArgumentParser(
            prog="python -m service", description="Serve medians from ReLU networks over HTTP."
        )
        parser.add_argument("--version", action="version", version=f"onnx-median {__version__}")
        try:
            from_env = cls.from_env()
        except ValueError as error:
            parser.error(str(error))
        for option in fields(cls):
            if not option.metadata["flag"]:
                continue
            default = getattr(from_env, option.name)
            text = f"{option.metadata['help']} [{PREFIX}{option.name.upper()}, {default}]".replace("%", "%%")
            name = "--" + option.name.replace("_", "-")
            if isinstance(option.default, bool):
                parser.add_argument(name, action=argparse.BooleanOptionalAction, default=default, help=text)
            else:
                parser.add_argument(name, type=type(option.default), default=default, help=text, metavar="X")
        chosen = vars(parser.parse_args(arguments))
        try:
            return cls(**chosen, api_key=from_env.api_key, runtime_dir=from_env.runtime_dir)
        except ValueError as error:
            parser.error(str(error))

    def to_env(self) -> dict[str, str]:
        """The same settings as environment variables, for worker processes."""
        return {PREFIX + option.name.upper(): str(getattr(self, option.name)) for option in fields(self)}


LINK = re.compile(r"MEDIAN_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT(_[0-9]+_(TCP|UDP|SCTP)(_[A-Z]+)?)?)")


def _service_link(name: str, text: str) -> bool:
    """True for variables that Kubernetes sets for a Service called `median`, such as MEDIAN_PORT=tcp://10.0.0.1:80."""
    return LINK.fullmatch(name) is not None and (name != "MEDIAN_PORT" or "://" in text)


def _parse(text: str, like: Any) -> Any:
    if isinstance(like, bool):
        words = dict.fromkeys(("1", "true", "yes", "on"), True) | dict.fromkeys(("0", "false", "no", "off"), False)
        if text.lower() not in words:
            raise ValueError(text)
        return words[text.lower()]
    return type(like)(text)
