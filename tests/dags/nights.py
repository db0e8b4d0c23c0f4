"""What the DAG tests share: one Airflow home for the process, fake steps, a fleet's shards.

Airflow reads its home when it is imported first, so this module names it before any test imports Airflow.
"""

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from warmup_tasks.items import WAVES
from warmup_tasks.local.airflow_run import DagRunResult, _parse, _task_states, airflow_variables

REPOSITORY = Path(__file__).resolve().parents[2]
DAGS = REPOSITORY / "dags"
HOME = Path(tempfile.mkdtemp(prefix="airflow-home-"))
os.environ.update(airflow_variables(HOME, DAGS))

SITE_ENV = {
    "WARMUP_LAKE": "memory://lake",
    "WARMUP_REDIS_URL": "redis://127.0.0.1:1/0",
    "WARMUP_FLEET": "/nowhere/fleet.yaml",
}
STEP_NAMES = (
    "extract",
    "profile",
    "tune",
    "plan",
    "replay",
    "twins",
    "warm",
    "probe",
    "publish_profile",
    "publish",
    "report",
)

Night = Callable[..., DagRunResult]


def shards_of_fleet(replicas: dict[str, int]) -> dict[str, dict[str, list[str]]]:
    """Shard ids as a plan hands them on: two a profile for stored items, one a replica for the others."""
    return {
        profile: {
            str(wave): [f"{profile}.w{wave}.{n}" for n in range(count if wave in (1, 3) else min(count, 1) * 2)]
            for wave in WAVES
        }
        for profile, count in replicas.items()
    }


@dataclass
class Steps:
    """Fake steps that keep what they were called with; ``errors`` maps a call to the errors that it raises in turn."""

    summary: dict[str, Any]
    calls: list[tuple[str, ...]] = field(default_factory=list)
    runs: list[Any] = field(default_factory=list)
    sites: list[Any] = field(default_factory=list)
    errors: dict[tuple[str, ...], list[Exception]] = field(default_factory=dict)
    backfills: list[bool] = field(default_factory=list)
    held: str = ""

    def step(self, name: str) -> Callable[..., dict[str, Any]]:
        def call(site: Any, run: Any, *arguments: str) -> dict[str, Any]:
            self.calls.append((name, *arguments))
            self.runs.append(run)
            self.sites.append(site)
            if waiting := self.errors.get((name, *arguments)):
                raise waiting.pop(0)
            return self.summary if name == "plan" else {"step": name}

        return call

    def held_back(self, site: Any, run: Any, *, is_backfill: bool = False) -> str:
        """Hold back what the real step holds back without looking anywhere; ``held`` says why for all others."""
        self.backfills.append(is_backfill)
        return "a dry run" if run.request.dry_run else self.held

    def names(self) -> list[str]:
        return [call[0] for call in self.calls]


def scheduled_dag(dag_id: str = "nightly_warmup") -> Any:
    """Return a DAG of the folder as the scheduler sees it."""
    from airflow.serialization.serialized_objects import DagSerialization

    return DagSerialization.deserialize_dag(DagSerialization.serialize_dag(_parse(dag_id, DAGS)))


def rerun(run_id: str, *task_ids: str) -> dict[str, str]:
    """Clear tasks of a finished run with all that follows them, and let Airflow run what is then due."""
    from airflow.utils.session import create_session

    downstream = scheduled_dag().partial_subset(list(task_ids), include_downstream=True, include_upstream=False)
    with create_session() as session:
        downstream.clear(run_id=run_id, session=session)
    return carry_out(run_id)


def carry_out(run_id: str, dag_id: str = "nightly_warmup") -> dict[str, str]:
    """Let Airflow run in this process what is due in a run that its database holds; return the task states."""
    from airflow.models.dagrun import DagRun
    from airflow.sdk.definitions.dag import _run_task
    from airflow.serialization.serialized_objects import DagSerialization
    from airflow.utils.session import create_session
    from sqlalchemy import select

    dag = _parse(dag_id, DAGS)  # anew each time: a run leaves its conf in the params of the DAG that it ran
    with create_session() as session:
        run = session.scalars(select(DagRun).where(DagRun.run_id == run_id, DagRun.dag_id == dag_id)).one()
        run.dag, run.state = DagSerialization.deserialize_dag(DagSerialization.serialize_dag(dag)), "running"
        session.commit()
        while run.state == "running":
            session.expire_all()
            due, _ = run.update_state(session=session)
            for instance in due:
                instance.try_number += 1
                instance.state = "scheduled"
            session.commit()
            for instance in due:
                _run_task(ti=instance, task=dag.task_dict[instance.task_id])
    return _task_states(dag_id, run_id)
