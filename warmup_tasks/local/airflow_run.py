"""One real Airflow run inside this process: no scheduler, no web server, a SQLite database of its own.

Airflow parses, validates, serialises, maps, retries and records exactly as it does under a scheduler; only its executor
is replaced by a loop in this process. Airflow reads its settings once, so one process serves one home and one folder.
"""

import os
import secrets
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any

from warmup_tasks.errors import ConfigurationError
from warmup_tasks.local.airflow_events import TaskEvent, TaskEvents, task_label

__all__ = ["DagRunResult", "TaskEvent", "airflow_variables", "run_dag"]


@dataclass(frozen=True)
class DagRunResult:
    """What became of a run.

    Attributes:
        state: ``success`` or ``failed``.
        task_count: task instances, mapped ones one by one.
        task_states: ``task_id`` or ``task_id[index]`` → state.
        stage_seconds: name of the task's function → seconds spent in it, over all its instances.
        run_id: Airflow's.
        error: class and message of the first task that failed, or None.
        overhead_seconds: ``import``, ``migrate``, ``parse`` and ``run``: what this call spent where.
    """

    state: str
    task_count: int
    task_states: dict[str, str]
    stage_seconds: dict[str, float]
    run_id: str
    error: str | None
    overhead_seconds: dict[str, float] = field(default_factory=dict)


def run_dag(
    dag_id: str,
    conf: Mapping[str, Any],
    *,
    airflow_home: Path,
    dags_folder: Path,
    env: Mapping[str, str],
    logical_date: datetime | None = None,
    retry_pause: timedelta | None = None,
    on_task: Callable[[TaskEvent], None] | None = None,
) -> DagRunResult:
    """Run a DAG once, to its end, and say what became of it.

    Airflow's own output goes to ``<airflow_home>/logs/airflow.log``, so what ``on_task`` writes is all that is seen.

    Args:
        dag_id: the DAG to run.
        conf: values of the run's params; ``{}`` takes all defaults.
        airflow_home: Airflow's folder; created, and its database migrated, on first use.
        dags_folder: where the DAG files lie.
        env: variables that the tasks see beside the process's own, such as ``WARMUP_LAKE``.
        logical_date: None for a run by hand without a date.
        retry_pause: pause before a task is tried again, in place of the DAG's own.
        on_task: called in this thread when a task begins and when it ends.

    Raises:
        ConfigurationError: the DAG is absent or does not parse, a param is refused, or this process already runs
            Airflow with another home or another DAGs folder.
    """
    home, folder = airflow_home.resolve(), dags_folder.resolve()
    log = _claim(home, folder)
    clock = _Clock()
    with _environment(env), _quiet(log) as aloud:
        import airflow.settings  # noqa: F401  # first, since it sets up logging and the database

        clock.lap("import")
        _migrate(home)
        clock.lap("migrate")
        dag = _parse(dag_id, folder)
        if retry_pause is not None:
            for task in dag.tasks:
                task.retry_delay, task.retry_exponential_backoff = retry_pause, 1.0
        clock.lap("parse")
        events = TaskEvents(dag, on_task, aloud)
        with events.listening():
            run = _run(dag, dict(conf), logical_date)
        states = _task_states(dag_id, run.run_id)
        clock.lap("run")
    return DagRunResult(
        state=run.state.value,
        task_count=len(states),
        task_states=states,
        stage_seconds=events.stage_seconds,
        run_id=run.run_id,
        error=events.first_error,
        overhead_seconds=clock.laps,
    )


def airflow_variables(airflow_home: Path, dags_folder: Path) -> dict[str, str]:
    """Return the variables of a small private Airflow: SQLite, no examples, a secret of its own, little logging."""
    return {
        "AIRFLOW_HOME": str(airflow_home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(dags_folder),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{airflow_home / 'airflow.db'}",
        "AIRFLOW__API_AUTH__JWT_SECRET": _secret(airflow_home),
        "AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(airflow_home / "logs"),
        "AIRFLOW__LOGGING__LOGGING_LEVEL": "INFO",
        "AIRFLOW__LOGGING__COLORED_CONSOLE_LOG": "False",
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
    }


def _claim(home: Path, dags_folder: Path) -> IO[str]:
    """Point this process at ``home`` and return its log, which stays open, since Airflow's loggers hold on to it."""
    taken = tuple(os.environ.get(name) for name in ("AIRFLOW_HOME", "AIRFLOW__CORE__DAGS_FOLDER"))
    if "airflow.settings" in sys.modules and taken != (str(home), str(dags_folder)):
        raise ConfigurationError(
            f"this process already runs Airflow in {taken[0]} with DAGs in {taken[1]}: use these, or a new process"
        )
    (home / "logs").mkdir(parents=True, exist_ok=True)
    os.environ.update(airflow_variables(home, dags_folder))
    return _log(home / "logs" / "airflow.log")


@cache
def _log(path: Path) -> IO[str]:
    return path.open("a", encoding="utf-8", buffering=1)


def _secret(home: Path) -> str:
    path = home / "jwt_secret"
    if not path.exists():
        path.touch(mode=0o600)
        path.write_text(secrets.token_hex(32), encoding="utf-8")
    return path.read_text(encoding="utf-8")


@contextmanager
def _environment(env: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in env}
    os.environ.update(env)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _quiet(log: IO[str]) -> Iterator[Callable[[], AbstractContextManager[None]]]:
    """Send what is printed and logged to ``log``; the value brings the streams back for one callback."""
    out, err = sys.stdout, sys.stderr

    @contextmanager
    def aloud() -> Iterator[None]:
        with redirect_stdout(out), redirect_stderr(err):
            yield

    with redirect_stdout(log), redirect_stderr(log):
        yield aloud


def _migrate(home: Path) -> None:
    stamp = home / f"migrated-{version('apache-airflow')}"
    if stamp.exists():
        return
    from airflow.utils.db import initdb

    initdb()
    stamp.touch()


def _parse(dag_id: str, dags_folder: Path) -> Any:
    """Parse the DAGs folder and return the DAG; ``DAG.test`` writes it to the database itself."""
    from airflow.dag_processing.dagbag import BundleDagBag

    bag = BundleDagBag(dag_folder=str(dags_folder), bundle_path=dags_folder, bundle_name="dags-folder")
    if dag := bag.dags.get(dag_id):
        return dag
    found = "\n".join(f"{file}: {trace.strip().splitlines()[-1]}" for file, trace in bag.import_errors.items())
    raise ConfigurationError(f"no DAG {dag_id!r} in {dags_folder}{': ' + found if found else ''}")


def _run(dag: Any, conf: dict[str, Any], logical_date: datetime | None) -> Any:
    from airflow.sdk.exceptions import ParamValidationError

    try:
        return dag.test(logical_date=logical_date, run_conf=conf)
    except ParamValidationError as error:
        raise ConfigurationError(str(error).splitlines()[0]) from None


def _task_states(dag_id: str, run_id: str) -> dict[str, str]:
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session
    from sqlalchemy import select

    query = select(TaskInstance.task_id, TaskInstance.map_index, TaskInstance.state)
    with create_session() as session:
        rows = session.execute(query.where(TaskInstance.dag_id == dag_id, TaskInstance.run_id == run_id)).all()
    return {task_label(task_id, index): str(state) for task_id, index, state in sorted(rows, key=lambda row: row[:2])}


class _Clock:
    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._since = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.laps[name], self._since = round(now - self._since, 3), now
