"""A whole Airflow on one machine: API server, scheduler, DAG processor, triggerer, and workers where Celery executes.

Each part is a process group of its own with its output in a file, waited for by its own health, ended in reverse order.
The executor is configuration: without workers the scheduler runs tasks itself, with workers Celery does. What the DAGs
do, and where Postgres and Redis come from, lies with the caller.
"""

import base64
import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Self

from warmup_tasks.errors import ConfigurationError, GiveUpError
from warmup_tasks.local.airflow_api import AirflowApi
from warmup_tasks.local.processes import Process, Service, free_port, start
from warmup_tasks.resources import include_path

USER = "admin"
HOST = "127.0.0.1"
PARTS = ("api-server", "scheduler", "dag-processor", "triggerer")
HEALTH = {"scheduler": "scheduler", "dag-processor": "dag_processor", "triggerer": "triggerer"}
MIGRATE_DEADLINE_S = 240.0
START_DEADLINE_S = 300.0
STOP_GRACE_S = 15.0
WORKER_NAME = "WARMUP_WORKER_NAME"

POLICY = """from datetime import timedelta


def task_policy(task):
    task.retry_delay = timedelta(seconds={seconds})
    task.retry_exponential_backoff = 1.0
"""

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Worker:
    """A Celery worker: its name, which task instances carry as their host, its queues, and how many tasks at once."""

    name: str
    queues: Sequence[str]
    slots: int = 2


@dataclass
class AirflowSite(Service):
    """Airflow's processes. Use it as a context manager.

    Attributes:
        folder: Airflow's home; logs of the parts lie in ``parts/``.
        dags_folder: where the DAG files lie.
        database_url: of the metadata database, as SQLAlchemy reads it; a driver that is asynchronous, too.
        env: variables that DAGs and tasks see, such as ``WARMUP_LAKE``.
        broker_url: of the Redis that carries Celery's messages; needed with workers.
        workers: Celery workers; without any the scheduler runs tasks itself.
        settings: further settings of Airflow, as variables; they win over those shipped in ``include/airflow.env``.
        retry_pause: pause before a task is tried again, in place of the DAG's own.
        tell: called with the name of each step of starting.
        port: of the API server; 0 takes a free one.
        password: of the login.
        parts: what runs, by name.
        api: Airflow's REST interface.
    """

    folder: Path
    dags_folder: Path
    database_url: str
    env: Mapping[str, str]
    broker_url: str = ""
    workers: Sequence[Worker] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    retry_pause: timedelta | None = None
    tell: Tell = lambda _: None
    port: int = 0
    password: str = field(default_factory=lambda: secrets.token_urlsafe(12))
    parts: dict[str, Process] = field(init=False, default_factory=dict)
    api: AirflowApi = field(init=False)

    @property
    def url(self) -> str:
        """The address of the user interface."""
        return f"http://{HOST}:{self.port}"

    def start(self) -> Self:
        """Migrate the database, start all parts, wait until each is healthy.

        Raises:
            ConfigurationError: workers are asked for without a broker.
            GiveUpError: a part ended or was not healthy within its deadline; the end of its output is quoted.
        """
        if self.workers and not self.broker_url:
            raise ConfigurationError("broker_url: Celery workers need a Redis that carries their messages")
        self.folder = self.folder.resolve()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.port = self.port or free_port()
        self.api = AirflowApi(self.url, USER, self.password)
        self._environment = {**os.environ, **shipped_settings(), **self._variables(), **self.settings, **self.env}
        passwords = Path(self._environment["AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE"])
        passwords.touch(mode=0o600)
        passwords.write_text(json.dumps({USER: self.password}), encoding="utf-8")
        self._set_retry_pause()
        self.tell("migrating Airflow's database")
        self._migrate()
        names = [*PARTS, *(worker.name for worker in self.workers)]
        self.tell(f"starting {', '.join(names)}")
        for name in names:
            self.launch(name)
        for name in names:
            self.wait_for(name)
        return self

    def stop(self) -> None:
        """Tell all parts to end, the last one first, and wait for them; tasks under way end with their worker."""
        ending = list(reversed(self.parts.values()))
        for part in ending:
            part.signal(signal.SIGTERM)
        for part in ending:
            part.stop(STOP_GRACE_S)
        self.parts.clear()
        if hasattr(self, "api"):
            self.api.close()

    def launch(self, name: str) -> None:
        """Start one part, or start it again; what it wrote before is kept. Does not wait."""
        worker = next((worker for worker in self.workers if worker.name == name), None)
        env = dict(self._environment)
        if worker is None:
            arguments = ["api-server", "--host", HOST, "--port", str(self.port)] if name == "api-server" else [name]
        else:
            env[WORKER_NAME] = worker.name
            options = ["--queues", ",".join(worker.queues), "--concurrency", str(worker.slots)]
            quiet = ["--celery-hostname", f"{worker.name}@%h", "--without-mingle", "--without-gossip"]
            arguments = ["celery", "worker", *options, *quiet, "--skip-serve-logs"]
        command = [sys.executable, "-m", "airflow", *arguments]
        log = self.folder / "parts" / f"{name}.log"
        self._seen_before = {**getattr(self, "_seen_before", {}), name: log.stat().st_size if log.exists() else 0}
        self.parts[name] = start(f"Airflow's {name}", command, log, env, append=True)

    def wait_for(self, name: str, deadline_s: float = START_DEADLINE_S) -> None:
        """Wait until one part is healthy.

        Raises:
            GiveUpError: it ended, or was not healthy within the deadline.
        """
        part = self.parts[name]
        if name == "api-server":
            part.wait_until(lambda: self.api.is_healthy("metadatabase"), deadline_s)
        elif name in HEALTH:
            part.wait_until(lambda: self.api.is_healthy(HEALTH[name]), deadline_s)
        else:
            part.wait_until(lambda: b" ready." in self._said_since_launch(name), deadline_s)

    def _said_since_launch(self, name: str) -> bytes:
        with self.parts[name].log_path.open("rb") as log:
            log.seek(self._seen_before[name])
            return log.read()

    def _migrate(self) -> None:
        log = self.folder / "parts" / "migrate.log"
        with start(
            "Airflow's migration", [sys.executable, "-m", "airflow", "db", "migrate"], log, self._environment
        ) as p:
            try:
                code = p.popen.wait(MIGRATE_DEADLINE_S)
            except subprocess.TimeoutExpired:
                code = None
            if code != 0:
                raise GiveUpError(f"Airflow's database could not be migrated:\n{p.tail()}")

    def _set_retry_pause(self) -> None:
        """Leave Airflow a policy for all tasks; it looks for one in its home."""
        policy = self.folder / "config" / "airflow_local_settings.py"
        if self.retry_pause is None:
            policy.unlink(missing_ok=True)
            return
        policy.parent.mkdir(exist_ok=True)
        policy.write_text(POLICY.format(seconds=self.retry_pause.total_seconds()), encoding="utf-8")

    def _variables(self) -> dict[str, str]:
        return {
            "AIRFLOW_HOME": str(self.folder),
            "AIRFLOW__CORE__DAGS_FOLDER": str(self.dags_folder),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__EXECUTOR": "CeleryExecutor" if self.workers else "LocalExecutor",
            "AIRFLOW__CORE__PARALLELISM": str(sum(worker.slots for worker in self.workers) or 4),
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{self.url}/execution/",
            "AIRFLOW__CORE__FERNET_KEY": base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(),
            "AIRFLOW__CORE__HOSTNAME_CALLABLE": "warmup_tasks.local.worker_host.worker_host",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": f"{USER}:admin",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(self.folder / "passwords.json"),
            "AIRFLOW__API__BASE_URL": self.url,
            "AIRFLOW__API__SECRET_KEY": secrets.token_hex(32),
            "AIRFLOW__API_AUTH__JWT_SECRET": secrets.token_hex(32),
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": self.database_url,
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_ASYNC": self.database_url,
            "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "30",
            "AIRFLOW__CELERY__BROKER_URL": self.broker_url,
            "AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(self.folder / "logs"),
            "AIRFLOW__LOGGING__COLORED_CONSOLE_LOG": "False",
            "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
        }


def shipped_settings() -> dict[str, str]:
    """Return the settings of ``include/airflow.env``: variable → value."""
    lines = include_path("airflow.env").read_text(encoding="utf-8").splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
