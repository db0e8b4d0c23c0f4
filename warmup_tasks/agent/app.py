"""The agent's assembly: one loop that watches every replica of a fleet and serves HTTP, until SIGTERM."""

import asyncio
import contextlib
import logging
import secrets
import signal
import socket
from collections.abc import Callable, Iterator

import uvicorn
from starlette.applications import Starlette

from warmup_tasks.agent.cache_watch import CacheWatch
from warmup_tasks.agent.http import build_app
from warmup_tasks.agent.live_watch import LiveWatch
from warmup_tasks.agent.members import Look, MemberWatch
from warmup_tasks.agent.metrics import AgentMetrics
from warmup_tasks.agent.settings import AgentSettings
from warmup_tasks.agent.thresholds import Thresholds
from warmup_tasks.agent.watch import ReplicaWatch
from warmup_tasks.engines.connect import open_engine
from warmup_tasks.errors import GiveUpError
from warmup_tasks.fleet_file import FleetFile
from warmup_tasks.serving.connection import connect
from warmup_tasks.serving.epochs import EpochStore
from warmup_tasks.serving.events import EventStream
from warmup_tasks.serving.lease import Leases
from warmup_tasks.serving.replica_turns import lease_of
from warmup_tasks.settings import validate

log = logging.getLogger(__name__)

_REDIS_TIMEOUT_S = 1.0  # a probe must hear "Redis is away" before it gives up itself
_REDIS_ATTEMPTS = 2


def serve(
    fleet: FleetFile,
    redis_url: str,
    *,
    port: int = 9400,
    poll_s: float = 2.0,
    host: str = "127.0.0.1",
    lake_uri: str | None = None,
    look: Look | None = None,
) -> None:
    """Run the agent until SIGTERM or SIGINT, and return when it has stopped cleanly.

    Args:
        fleet: whose replicas are watched.
        redis_url: of the serving store; it may be away, and come back.
        port: to listen on.
        poll_s: pause between two looks at a replica, in s.
        host: address to listen on.
        lake_uri: where tuned thresholds are looked up; None: the default ones hold.
        look: how the fleet is looked up again now and then; None: its members never change.

    Raises:
        ConfigurationError: a setting is refused.
        GiveUpError: the port is taken.
    """
    settings = validate({"host": host, "port": port, "poll_s": poll_s}, AgentSettings, "agent settings")
    watched: FleetFile | None = fleet
    while watched is not None:
        watched = asyncio.run(run(watched, redis_url, settings, lake_uri, look))


async def run(
    fleet: FleetFile,
    redis_url: str,
    settings: AgentSettings,
    lake_uri: str | None = None,
    look: Look | None = None,
) -> FleetFile | None:
    """Run the agent inside a running loop, see :func:`serve`; return the fleet that it is to go on with, if any."""
    metrics, stop, others = AgentMetrics(), asyncio.Event(), list[FleetFile]()
    async with contextlib.AsyncExitStack() as stack:
        listener = stack.enter_context(_listen(settings))
        client = stack.enter_context(connect(redis_url, timeout_s=_REDIS_TIMEOUT_S, attempts=_REDIS_ATTEMPTS))
        epochs, stream, leases = EpochStore(client), EventStream(client), Leases(client)

        def is_warming(replica: str) -> bool:
            return leases.holder(lease_of(fleet.replica(replica).turn)) is not None

        label, thresholds = secrets.token_hex(8), Thresholds(lake_uri, settings)
        watches: list[ReplicaWatch | CacheWatch | Thresholds | MemberWatch] = [thresholds]
        for spec in fleet.replicas:
            engine = await stack.enter_async_context(open_engine(spec))
            crossing = thresholds.crossing(spec.model)
            live = LiveWatch(spec.name, spec.model, stream, crossing, metrics, is_warming)
            watches.append(ReplicaWatch(spec.name, engine, epochs, settings, metrics, live))
            watches.append(CacheWatch(spec.name, spec.model, engine, epochs, settings, label))
        server = _Server(build_app(client, fleet, metrics))
        end = stack.enter_context(_signals(server, stop))
        if look is not None:

            def change(found: FleetFile) -> None:
                others.append(found)
                end()

            watches.append(MemberWatch(fleet, look, settings.members_s, change))
        log.info("watching %d replicas, listening on %s:%d", len(fleet.replicas), *listener.getsockname()[:2])
        async with asyncio.TaskGroup() as tasks:  # a watch that dies takes the agent with it, to be started afresh
            for watch in watches:
                tasks.create_task(watch.run(stop))
            await server.serve(sockets=[listener])
            stop.set()
    log.info("stopped")
    return others[0] if others else None


class _Server(uvicorn.Server):
    """uvicorn without its own signal handling, which would end the process by the signal it caught."""

    def __init__(self, app: Starlette) -> None:
        super().__init__(uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=3))

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.contextmanager
def _signals(server: uvicorn.Server, stop: asyncio.Event) -> Iterator[Callable[[], None]]:
    loop = asyncio.get_running_loop()

    def end() -> None:
        server.should_exit = True
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)
    try:
        yield end
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


def _listen(settings: AgentSettings) -> socket.socket:
    try:
        return socket.create_server((settings.host, settings.port))
    except OSError as error:
        raise GiveUpError(
            f"the agent cannot listen on {settings.host}:{settings.port}: {error.strerror}; choose another --port"
        ) from None
