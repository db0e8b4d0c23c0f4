"""Fixtures of the DAG tests: the folder's one Airflow, the fake steps, and a night that runs them for real."""

import shutil
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.dags.nights import DAGS, HOME, SITE_ENV, STEP_NAMES, Night, Steps, shards_of_fleet
from warmup_tasks import gates, nightly
from warmup_tasks.local.airflow_run import DagRunResult, run_dag


@pytest.fixture(scope="session", autouse=True)
def airflow_home() -> Iterator[Path]:
    """The home that every run of this process uses."""
    yield HOME
    shutil.rmtree(HOME, ignore_errors=True)


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    fake = Steps({"planned": 7, "shards": shards_of_fleet({"large": 1, "small": 1})})
    for name in STEP_NAMES:
        monkeypatch.setattr(nightly, name, fake.step(name))
    monkeypatch.setattr(gates, "held_back", fake.held_back)
    monkeypatch.setattr(gates, "in_time", lambda site, run, *, is_published: {"late_s": 0.0})
    return fake


@pytest.fixture(scope="session")
def one_profile(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a site with a single hardware profile, for runs that need no second one."""
    path = tmp_path_factory.mktemp("profiles") / "profiles.yaml"
    lines = ["profiles:", "  - {name: small, queue: gpu.small, bandwidth_gb_per_s: 300, latency_ns: 120,"]
    path.write_text("\n".join([*lines, "     compute_tflops: 121}"]))
    return {**SITE_ENV, "WARMUP_PROFILES": str(path)}


@pytest.fixture
def night(steps: Steps, one_profile: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Night:
    """Run the DAG for real with fake steps over one profile; Airflow's loop naps shorter where nothing can run."""
    steps.summary["shards"].pop("large")
    monkeypatch.setattr(time, "sleep", lambda seconds, nap=time.sleep: nap(min(seconds, 0.01)))

    def run(conf: dict[str, Any] | None = None, dag_id: str = "nightly_warmup", **options: Any) -> DagRunResult:
        places: dict[str, Any] = {"airflow_home": HOME, "dags_folder": DAGS, "env": one_profile}
        return run_dag(dag_id, conf or {}, retry_pause=timedelta(0), **(places | options))

    return run
