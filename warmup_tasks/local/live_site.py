"""Everything of a warm-up site on one machine, alive: engine doubles, Redis, the agent, and a whole Airflow.

For demonstrations, tests and benchmarks: each part may be killed and started again. What a run does lies in the DAGs;
one night without a scheduler lies in ``night.py``.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, time, timedelta
from pathlib import Path
from typing import Any, Self

from warmup_tasks import nightly
from warmup_tasks.engines.double.process import DoubleProcess
from warmup_tasks.fleet_file import FleetFile
from warmup_tasks.lake import Lake
from warmup_tasks.local import fleet
from warmup_tasks.local.agent_process import start_agent
from warmup_tasks.local.airflow_api import AirflowApi
from warmup_tasks.local.airflow_site import AirflowSite, Worker
from warmup_tasks.local.postgres_server import PostgresServer
from warmup_tasks.local.processes import Process, Service, free_port
from warmup_tasks.local.redis_server import RedisServer
from warmup_tasks.local.traffic import traffic_of
from warmup_tasks.resources import dags_path, include_path
from warmup_tasks.settings import RunRequest, Site
from warmup_tasks.sources.sample_log import write_sample_log

NIGHT = time(2, tzinfo=UTC)
SAMPLE_SEED, SAMPLE_DAYS = 7, 3
KEPT = {"appendonly": "yes", "appendfsync": "everysec"}
"""The serving store comes back with what it held, as in production."""


@dataclass
class LiveSite(Service):
    """A site that runs. Use it as a context manager.

    Attributes:
        folder: for everything that is written.
        now: gives the site its night: the sample log reaches a few hours beyond the last 02:00 UTC before it.
        log: read in place of a sample log.
        replicas_per_profile: engine doubles of each profile.
        workers: Celery workers; without any the scheduler runs tasks itself.
        settings: further settings of Airflow, as variables.
        retry_pause: pause before a task is tried again, in place of the DAG's own.
        scale: traffic of the sample log; 1.0 is about 5,000 requests.
        tell: called with the name of each step of starting.
    """

    folder: Path
    now: datetime
    log: str = ""
    log_format: str = "auto"
    replicas_per_profile: int = 1
    workers: Sequence[Worker] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    retry_pause: timedelta | None = None
    scale: float = 1.0
    port: int = 0
    tell: Callable[[str], None] = lambda _: None

    site: Site = field(init=False)
    fleet: FleetFile = field(init=False)
    doubles: dict[str, DoubleProcess] = field(init=False, default_factory=dict)
    redis: RedisServer = field(init=False)
    broker: RedisServer = field(init=False)
    agent: Process = field(init=False)
    airflow: AirflowSite = field(init=False)
    as_of: datetime = field(init=False)
    _agent_port: int = field(init=False, default=0)
    _stack: ExitStack = field(init=False, default_factory=ExitStack)

    @property
    def api(self) -> AirflowApi:
        """Airflow's REST interface."""
        return self.airflow.api

    @property
    def agent_url(self) -> str:
        """Where the agent answers readiness probes."""
        return f"http://127.0.0.1:{self._agent_port}"

    def start(self) -> Self:
        """Start every part, in the order of what needs what.

        Raises:
            ConfigurationError: the log cannot be read, or a server is not installed.
            GiveUpError: a part did not come up.
        """
        self.folder = self.folder.resolve()
        log = self.log or self._write_log()
        lake_uri = str(self.folder / "lake")
        self.tell(f"reading {log}")
        read = nightly.read_log(lake_uri, RunRequest(log=log, log_format=self.log_format))
        traffic = traffic_of(Lake(lake_uri), read["days"])
        self.as_of = traffic.as_of()
        self.tell("starting Redis, Postgres, engines and the agent")
        self.redis = self._stack.enter_context(RedisServer(options=KEPT))
        database = self._stack.enter_context(PostgresServer())
        self._stack.callback(self._stop_doubles)
        found, self.doubles = fleet.many_doubles(traffic, self.folder / "engine", self.replicas_per_profile)
        self.fleet = found
        self.site = Site(
            lake_uri=lake_uri,
            redis_url=self.redis.url,
            fleet_path=str(self.folder / "fleet.yaml"),
            profiles_path=str(include_path("profiles.yaml")),
            default_log=log,
        )
        fleet.write_fleet(found, Path(self.site.fleet_path))
        self.start_agent()
        self._stack.callback(self._stop_agent)
        broker_url = ""
        if self.workers:
            self.broker = self._stack.enter_context(RedisServer())
            broker_url = self.broker.url
        airflow = AirflowSite(
            folder=self.folder / "airflow",
            dags_folder=dags_path(),
            database_url=database.url,
            env=self.site.to_environment(),
            broker_url=broker_url,
            workers=self.workers,
            settings=self.settings,
            retry_pause=self.retry_pause,
            tell=self.tell,
            port=self.port,
        )
        self.airflow = self._stack.enter_context(airflow)
        return self

    def stop(self) -> None:
        """End every part, the last one first."""
        self._stack.close()

    def start_agent(self) -> None:
        """Start the agent, or start it again, and wait until it publishes every epoch."""
        self._agent_port = self._agent_port or free_port()
        self.agent = start_agent(self.site, self.fleet, self.folder / "agent.log", port=self._agent_port)

    def restart_replica(self, name: str) -> None:
        """Kill a replica and start it again at its address: with an empty cache, in a new epoch."""
        self.doubles[name].kill()
        self.doubles[name] = fleet.start_again(self.doubles[name])

    def dag_ids(self) -> list[str]:
        """Return the DAGs of the folder, once the DAG processor has read a DAG of every file."""
        files = {path.stem for path in dags_path().glob("*.py")}
        listed = self.api.wait_until(lambda: self._listed(files), 120.0, f"the DAGs of {', '.join(sorted(files))}")
        return sorted(listed)

    def unpause(self) -> list[str]:
        """Let every DAG run, and return their names."""
        names = self.dag_ids()
        for name in names:
            self.api.set_paused(name, is_paused=False)
        return names

    def _listed(self, files: set[str]) -> list[str]:
        dags: list[dict[str, Any]] = self.api.get("dags", limit=100, exclude_stale=True)["dags"]
        read = {Path(str(dag["relative_fileloc"])).stem for dag in dags}
        return [str(dag["dag_id"]) for dag in dags] if files <= read else []

    def _write_log(self) -> str:
        end = datetime.combine(self.now.astimezone(UTC).date(), NIGHT)
        end = end if end <= self.now else end - timedelta(days=1)
        folder = self.folder / "sample-log"
        self.tell("writing the sample log")
        write_sample_log(folder, seed=SAMPLE_SEED, days=SAMPLE_DAYS, scale=self.scale, end=end)
        return str(folder)

    def _stop_agent(self) -> None:
        self.agent.stop()

    def _stop_doubles(self) -> None:
        for double in self.doubles.values():
            double.stop()
