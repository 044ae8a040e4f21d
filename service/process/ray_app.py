"""The application on a cluster, by Ray Serve: `serve run service.process.ray_app:app`.

A replica is one process with the models, like a worker on one machine, behind the HTTP proxies on Ray's nodes. Ray starts
replicas, starts more when requests wait, checks their health, lets a replica finish its requests before it ends, and
replaces lost replicas. A small second deployment, the board (`service.process.peers`), passes on reloads and sums the
figures.

Every request passes the ASGI application, which checks the API key. The deployments offer no other way to a median.
"""

from __future__ import annotations

import asyncio
import logging
import os
import tempfile
from collections.abc import Mapping
from dataclasses import fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from ray import serve
from starlette.types import Receive, Scope, Send

from service.app import create_app
from service.errors import ProblemError
from service.models.building import ensure_models
from service.process import logs, metrics
from service.process.peers import UNTOLD, Board, Peers
from service.process.settings import PREFIX, Settings
from service.serving.gateway import Gateway

log = logging.getLogger("service")
NAME = "median"  # of the application, and of the deployment in it
ANSWER_S = 5.0  # time limit of the board
AT_ONCE = 16  # a replica accepts so many times its target number of requests, which then share calls
KEY = PREFIX + "API_KEY"
_serving: list[Gateway] = []  # the application of this process


class Posted(Peers):
    """The other replicas, through the board."""

    several = True
    pause_s = 1.0

    def __init__(self, board: Any, replica: str) -> None:
        self.board = board
        self.replica = replica
        self.ready = True

    async def mark(self) -> int:
        async with asyncio.timeout(ANSWER_S):
            mark: int = await self.board.report.remote(self.replica, metrics.exposition()[0], self.ready)
        return mark

    async def tell(self) -> None:
        try:
            async with asyncio.timeout(ANSWER_S):
                await self.board.reload.remote()
        except Exception as error:
            raise ProblemError(500, UNTOLD.format(type(error).__name__)) from None

    async def figures(self) -> tuple[bytes, str]:
        own, media_type = metrics.exposition()
        try:
            await self.mark()
            async with asyncio.timeout(ANSWER_S):
                return await self.board.figures.remote(), media_type
        except Exception as error:  # the figures of this replica alone are still useful
            log.error("metrics of other replicas cannot be read", extra={"fields": {"error": repr(error)[:300]}})
            return own, media_type


class Application:
    """The callable that Ray runs in a replica. It exists before the replica, and finds the application there."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await _serving[-1](scope, receive, send)


class Replica:
    """One process that serves."""

    async def __init__(self, environment: dict[str, str], board: Any) -> None:  # type: ignore[misc]  # Ray waits
        settings = Settings.from_env({**environment, **_key(environment)})
        logs.configure(settings.log_level)
        self.peers = Posted(board, serve.get_replica_context().replica_id.unique_id)
        self.peers.seen = await self.peers.mark()  # before the models are loaded, so that no reload is missed
        if not ensure_models(settings):
            raise RuntimeError(f"there is no model to serve in {settings.models} on this node; the log says why")
        self.scratch = tempfile.TemporaryDirectory(prefix="onnx-median-", ignore_cleanup_errors=True)
        _serving.append(create_app(replace(settings, runtime_dir=self.scratch.name), self.peers))

    async def check_health(self) -> None:
        """Ray calls this check, and replaces a replica that fails repeatedly."""
        trouble = await _serving[-1].engine.trouble()
        self.peers.ready = trouble is None
        if trouble is not None:
            raise RuntimeError(trouble)


def _bound(settings: Settings) -> dict[str, str]:
    """The settings inside a deployment, which users of the cluster can see: instead of the key only the fact that a key is
    needed."""
    environment = settings.to_env()
    environment[KEY] = "needed" if settings.api_key else ""
    return environment


def _key(environment: Mapping[str, str]) -> dict[str, str]:
    """The API key from the environment of the node. A replica without a required key does not start."""
    key = os.environ.get(KEY, "") if environment[KEY] else ""
    if environment[KEY] and not key:
        raise RuntimeError(f"{KEY} is not set on this node: set it where Ray is started, on every node, as a secret")
    return {KEY: key}


def application(settings: Settings) -> Any:
    """The deployments for some settings, which every replica receives."""
    threads = settings.threads or max(1, int(settings.replica_cpus))
    settings = replace(settings, threads=threads, models=Path(os.path.abspath(settings.models)), runtime_dir="")
    board = serve.deployment(
        Board, name="board", num_replicas=1, max_ongoing_requests=1000, ray_actor_options={"num_cpus": 0}
    )
    replica = serve.deployment(
        serve.ingress(Application())(Replica),
        name=NAME,
        max_ongoing_requests=settings.replica_requests * AT_ONCE,
        max_queued_requests=settings.queue,
        autoscaling_config={
            "min_replicas": settings.replicas,
            "max_replicas": settings.max_replicas,
            "target_ongoing_requests": settings.replica_requests,
            "upscale_delay_s": 3.0,
            "downscale_delay_s": 60.0,
            "look_back_period_s": 5.0,
        },
        health_check_period_s=2.0,
        health_check_timeout_s=10.0,
        graceful_shutdown_wait_loop_s=max(0.1, settings.drain_s),
        graceful_shutdown_timeout_s=settings.timeout_s + 1,
        ray_actor_options={"num_cpus": settings.replica_cpus},
    )
    return replica.bind(_bound(settings), board.bind())


def app(args: Mapping[str, Any]) -> Any:
    """What `serve run service.process.ray_app:app NAME=VALUE ...` and `args:` of a config file build: the options of
    `python -m service` by their names, with the environment as defaults."""
    known = {option.name: option.metadata["flag"] for option in fields(Settings)}
    for name in args:
        if name not in known:
            near = "".join(f": did you mean {word!r}?" for word in get_close_matches(name, known, 1))
            raise ValueError(f"unknown option {name!r}{near} (there are {', '.join(known)})")
        if not known[name]:
            raise ValueError(f"{name} is read from the environment only, as {PREFIX}{name.upper()}")
    given = {PREFIX + name.upper(): str(value) for name, value in args.items()}
    return application(Settings.from_env({**os.environ, **given}))
