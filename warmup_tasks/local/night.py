"""A whole night on one machine: starts what it needs, runs the DAG in Airflow, shows the result, stops what it started.

Here lives the order of things. How Redis, engines and Airflow start lies in the files beside this one.
"""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from rich.console import Console

from warmup_tasks import nightly
from warmup_tasks.errors import ConfigurationError, GiveUpError
from warmup_tasks.identity import digest
from warmup_tasks.lake import Lake
from warmup_tasks.local import fleet
from warmup_tasks.local.agent_process import start_agent
from warmup_tasks.local.airflow_events import TaskEvent
from warmup_tasks.local.airflow_run import run_dag
from warmup_tasks.local.redis_server import RedisServer
from warmup_tasks.local.traffic import Traffic, traffic_of
from warmup_tasks.reporting.summary import RunSummary
from warmup_tasks.resources import dags_path, include_path
from warmup_tasks.runs import wishes_of
from warmup_tasks.settings import RunRequest, Site, load_profiles
from warmup_tasks.sources.sample_log import DEFAULT_AS_OF, write_sample_log

DAG_ID = "nightly_warmup"
MEASURE_WINDOW_S = 300
TUNING_TIME_S = 10
"""Tasks run one after the other here, so a night's tuning is felt; it is cut to what a first look needs."""
RETRY_PAUSE = timedelta(seconds=2)
SAMPLE_SEED, SAMPLE_DAYS = 7, 3
ENGINES: dict[str, dict[str, Any]] = {
    "double": {},
    "vllm": {"max_answers": 40, "max_twins": 52, "vocabulary_size": 4096},
}
"""Kinds of engine that can be started here, with the wishes that a small machine needs: a model on a CPU takes about a
second for one cold prompt or default answer."""


@dataclass(frozen=True, slots=True)
class LocalNight:
    """What a user asks of a local run; empty values choose for themselves."""

    log: str = ""
    log_format: str = "auto"
    as_of: datetime | None = None
    engine: str = "double"
    engine_urls: str = ""
    wishes: Mapping[str, Any] = field(default_factory=dict)

    def run(
        self, folder: Path, console: Console, linger: Callable[[Site, RunSummary], None] | None = None
    ) -> RunSummary:
        """Run the night and return its figures; ``folder/run`` gets ``summary.json`` and ``report.html``.

        Args:
            folder: for everything that is written, kept between runs.
            console: for progress.
            linger: called with the site while everything still runs; its return ends the night.

        Raises:
            ConfigurationError: an option is refused.
            GiveUpError: the run failed; the message says where and where to look.
        """
        if self.engine not in ENGINES:
            raise ConfigurationError(f"engine: {self.engine!r} is not one of {', '.join(ENGINES)}")
        folder = folder.resolve()
        log, as_of = self.log, self.as_of
        if not log:
            log, as_of = str(folder / "sample-log"), as_of or DEFAULT_AS_OF
            with console.status("writing the sample log"):
                write_sample_log(Path(log), seed=SAMPLE_SEED, days=SAMPLE_DAYS, scale=1.0, end=DEFAULT_AS_OF)
        given = {} if self.engine_urls else ENGINES[self.engine]
        values = {
            "measure_window_s": MEASURE_WINDOW_S,
            "tuning_time_s": TUNING_TIME_S,
            **given,
            **self.wishes,
            "log": log,
            "log_format": self.log_format,
        }
        request, explicit = wishes_of(values, "options")
        # Of its own for each set of engines: what was seen of one is no evidence on another of the same names.
        lake_uri = str(folder / "lake" / digest([log, self.log_format, self.engine, self.engine_urls])[:12])
        with console.status(f"reading {log}"):
            read = nightly.read_log(lake_uri, request)
            traffic = traffic_of(Lake(lake_uri), read["days"])
        request = request.model_copy(update={"as_of": as_of or traffic.as_of()})
        console.print(f"{read['requests_read']} records read, plan time {request.as_of}", highlight=False)
        with ExitStack() as stack:
            site = self._start(traffic, lake_uri, folder, stack, console)
            summary = _night(site, request, explicit, folder, console)
            if linger is not None:
                linger(site, summary)
            return summary

    def _start(self, traffic: Traffic, lake_uri: str, folder: Path, stack: ExitStack, console: Console) -> Site:
        with console.status(f"starting Redis, two engines ({self.engine_urls or self.engine}) and the agent"):
            redis = stack.enter_context(RedisServer())
            if self.engine_urls:
                urls = [url.strip() for url in self.engine_urls.split(",") if url.strip()]
                found = fleet.find_servers(urls, load_profiles(), traffic)
            elif self.engine == "vllm":
                found = fleet.start_real(traffic, folder / "engine", stack)
            else:
                found = fleet.start_doubles(traffic, folder / "engine", stack)
            site = Site(
                lake_uri=lake_uri,
                redis_url=redis.url,
                fleet_path=str(folder / "run" / "fleet.yaml"),
                profiles_path=str(include_path("profiles.yaml")),
                report_folder=str(folder / "run"),
            )
            fleet.write_fleet(found, Path(site.fleet_path))
            start_agent(site, found, folder / "run" / "agent.log", stack)
        for replica in found.replicas:
            console.print(f"replica {replica.name} at {replica.url}", highlight=False)
        return site


def _night(site: Site, request: RunRequest, explicit: Mapping[str, Any], folder: Path, console: Console) -> RunSummary:
    run = nightly.begin(site.lake_uri, request, explicit)
    conf = {**request.model_dump(mode="json"), **explicit}
    with console.status("starting Airflow") as status:

        def tell(event: TaskEvent) -> None:
            if event.seconds is None:
                status.update(f"{event.task}")
            else:
                style = {"success": "green", "skipped": "dim"}.get(event.state, "red")
                console.print(f"[{style}]{event.state:>8}[/] {event.seconds:7.2f} s  {event.task}", highlight=False)

        result = run_dag(
            DAG_ID,
            conf,
            airflow_home=folder / "airflow",
            dags_folder=dags_path(),
            env=site.to_environment(),
            retry_pause=RETRY_PAUSE,
            on_task=tell,
        )
    if result.state != "success":
        raise GiveUpError(
            f"the run failed: {result.error}\nAirflow's log: {folder / 'airflow' / 'logs' / 'airflow.log'}"
        )
    nightly.report(site, run, site.report_folder, result.stage_seconds, result.task_count)
    return RunSummary.model_validate_json((Path(site.report_folder) / "summary.json").read_text())
