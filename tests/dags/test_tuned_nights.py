"""Two real nights in Airflow over one lake: the first tunes; the second, cleared tasks too, uses what it found."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml

from tests.dags.nights import Night, Steps, rerun
from tests.support.service_log import rows_of, service_requests, states
from warmup_tasks import nightly
from warmup_tasks.demand.embedder import default_embedder_identity
from warmup_tasks.fleet_file import FleetFile, ModelSpec, ReplicaSpec
from warmup_tasks.items import ReplicaState
from warmup_tasks.lake.schemas import REQUESTS, to_table
from warmup_tasks.lake.store import Lake
from warmup_tasks.parameters import GoldenParameters
from warmup_tasks.runs import Run
from warmup_tasks.tuning.published import publish
from warmup_tasks.tuning.sensitivity import Sensitivity

pytestmark = pytest.mark.airflow

FIRST = datetime(2026, 11, 27, 2, tzinfo=UTC)
SPAN_S = 2000
REAL_TUNE = nightly.tune


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    lake = Lake(str(tmp_path / "lake"))
    rows = rows_of(*service_requests(SPAN_S, 1.0, 40), begin=FIRST - timedelta(seconds=SPAN_S))
    lake.publish("requests", "2026-11-27", {"requests": pa.Table.from_pylist(rows, schema=REQUESTS)})
    return lake


@pytest.fixture
def site(tmp_path: Path, lake: Lake, one_profile: dict[str, str]) -> dict[str, str]:
    fleet = FleetFile(
        models=[ModelSpec(name="m", weights_revision="r1")],
        replicas=[ReplicaSpec(name="m-0", url="http://m-0", profile="small", model="m")],
        embedder=default_embedder_identity(),
    )
    path = tmp_path / "fleet.yaml"
    path.write_text(yaml.safe_dump(fleet.model_dump(mode="json")))
    return {**one_profile, "WARMUP_LAKE": lake.uri, "WARMUP_FLEET": str(path)}


@pytest.fixture
def real_tuning(steps: Steps, lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    surveyed = nightly.profile

    def profile(site: Any, run: Run) -> dict[str, Any]:
        lake.publish("replicas", run.run_id, {"replicas": to_table(states(), ReplicaState)})
        return surveyed(site, run)

    monkeypatch.setattr(nightly, "profile", profile)
    monkeypatch.setattr(nightly, "tune", REAL_TUNE)


def planned_with(steps: Steps) -> Run:
    return next(run for call, run in zip(steps.calls, steps.runs, strict=True) if call == ("plan",))


@pytest.mark.usefixtures("real_tuning")
def test_what_one_night_tunes_the_next_one_plans_with_and_a_cleared_task_repeats(
    night: Night, steps: Steps, lake: Lake, site: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = night({"as_of": FIRST.isoformat(), "tuning_time_s": 120}, env=site)
    assert first.state == "success"
    asked = planned_with(steps)
    assert asked.parameters == GoldenParameters(), "a night does not plan with its own values"
    account = lake.meta(f"tuning_nights/{asked.run_id}")["classes"]["m.base.chat"]
    assert account["verdict"] == "tuned values published"
    steps.calls.clear(), steps.runs.clear()

    later = (FIRST + timedelta(days=1)).isoformat()
    second = night({"as_of": later, "tuning_time_s": 0, "top_k": 77}, env=site)
    assert second.state == "success"
    run = planned_with(steps)
    assert run.parameters.trigger_threshold_ms == account["values"]["trigger_threshold_ms"] != 500.0
    assert run.parameters.top_k == 77
    assert run.origins.tuning_ref == "tuning/m.base.chat.20261127T020000Z@000001"
    assert run.origins.told("trigger_threshold_ms") == "tuned on 2026-11-27"
    assert run.origins.told("top_k") == "set by the operator"
    assert run.origins.told("lead_time_s") == "default"
    assert {one.parameters for one in steps.runs} == {run.parameters}
    steps.calls.clear(), steps.runs.clear()

    meta = {"model": "m", "adapter": None, "request_type": "chat", "suits_plan": True, "requests": 9, "tuned_at": {}}
    publish(lake, "m.base.chat", FIRST + timedelta(hours=1), {"trigger_threshold_ms": 33.0}, Sensitivity({}, []), meta)
    for name, value in site.items():
        monkeypatch.setenv(name, value)
    assert set(rerun(second.run_id, "plan").values()) <= {"success", "skipped"}
    assert {one.parameters for one in steps.runs} == {run.parameters}, "what began the run rules it to its end"
