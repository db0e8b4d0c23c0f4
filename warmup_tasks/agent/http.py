"""The agent's HTTP surface: ``/ready`` for probes and routers, ``/healthz`` for the agent itself, ``/metrics``.

Nothing here judges: readiness is what ``serving/readiness.py`` says.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress

import redis
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from warmup_tasks.agent.metrics import AgentMetrics
from warmup_tasks.errors import WarmupError
from warmup_tasks.fleet_file import FleetFile
from warmup_tasks.serving.events import EventStream
from warmup_tasks.serving.readiness import ReadinessStore, Verdict, is_ready
from warmup_tasks.serving.run_figures import RunFiguresStore


def build_app(client: redis.Redis, fleet: FleetFile, metrics: AgentMetrics) -> Starlette:
    """Return the application.

    ``GET /ready?model=…&replica=…`` answers 200 or 503 with ``{"ready": bool, "reason": str}``, 400 when a parameter is
    missing. Redis being away is 503: not ready.
    """
    surface = _Surface(
        lambda model, replica: _verdict(client, model, replica),
        lambda: _outcomes(client),
        lambda: _left(client, metrics),
        fleet,
        metrics,
    )
    routes = [
        Route("/ready", surface.ready),
        Route("/healthz", surface.healthz),
        Route("/metrics", surface.metrics),
    ]
    return Starlette(routes=routes)


class _Surface:
    def __init__(
        self,
        ask: Callable[[str, str], Verdict],
        outcomes: Callable[[], dict[str, int]],
        show_left: Callable[[], None],
        fleet: FleetFile,
        metrics: AgentMetrics,
    ) -> None:
        self._ask = ask
        self._outcomes = outcomes
        self._show_left = show_left
        self._fleet = fleet
        self._metrics = metrics

    async def ready(self, request: Request) -> Response:
        model, replica = request.query_params.get("model"), request.query_params.get("replica")
        if not model or not replica:
            return JSONResponse({"ready": False, "reason": "ask as /ready?model=NAME&replica=NAME"}, 400)
        verdict = await asyncio.to_thread(self._ask, model, replica)
        return JSONResponse({"ready": verdict.is_ready, "reason": verdict.reason}, 200 if verdict.is_ready else 503)

    async def healthz(self, _: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def metrics(self, _: Request) -> Response:
        replicas = self._fleet.replicas
        asked = (asyncio.to_thread(self._ask, replica.model, replica.name) for replica in replicas)
        for replica, verdict in zip(replicas, await asyncio.gather(*asked), strict=True):
            self._metrics.is_ready.labels(replica.model, replica.name).set(verdict.is_ready)
        for outcome, count in (await asyncio.to_thread(self._outcomes)).items():
            self._metrics.outcomes.labels(outcome).set(count)
        await asyncio.to_thread(self._show_left)
        return Response(generate_latest(self._metrics.registry), media_type=CONTENT_TYPE_LATEST)


def _verdict(client: redis.Redis, model: str, replica: str) -> Verdict:
    try:
        return is_ready(client, model, replica)
    except WarmupError as error:
        return Verdict(False, str(error))


def _outcomes(client: redis.Redis) -> dict[str, int]:
    try:
        return EventStream(client).outcomes()
    except WarmupError:
        return {}


def _left(client: redis.Redis, metrics: AgentMetrics) -> None:
    """Show what runs left behind; nothing of it while Redis is away."""
    run, records = None, []
    with suppress(WarmupError):
        run, records = RunFiguresStore(client).read(), list(ReadinessStore(client).records())
    metrics.runs.show_run(run)
    metrics.runs.show_readiness(records)
