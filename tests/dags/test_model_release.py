"""Releases in a real Airflow, in this process, with fake steps: canary first, judged, then the rest."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.dags.nights import Night, Steps
from tests.dags.test_dag_structure import parsed_file
from warmup_tasks import rollout
from warmup_tasks.errors import GiveUpError
from warmup_tasks.local.airflow_run import DagRunResult

pytestmark = pytest.mark.airflow

WHAT = {"what": "model", "name": "m", "version": "r2"}
FLEET = {
    "models": [{"name": "m", "weights_revision": "r1"}, {"name": "other"}],
    "replicas": [
        {"name": name, "url": f"http://127.0.0.1:{port}", "profile": "small", "model": model}
        for port, (name, model) in enumerate({"a": "m", "b": "m", "c": "m", "d": "other"}.items(), start=1)
    ],
    "embedder": {"embedder": "e", "revision": "1", "dimensions": 4},
}
Trigger = Callable[..., DagRunResult]


@pytest.fixture
def release(
    night: Night, steps: Steps, one_profile: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Trigger:
    for name in ("void", "judge", "take_back", "settle"):
        monkeypatch.setattr(rollout, name, steps.step(name))
    path = tmp_path / "fleet.yaml"
    path.write_text(yaml.safe_dump(FLEET))
    env = {**one_profile, "WARMUP_FLEET": str(path)}
    return lambda conf: night(conf, dag_id="model_release", env=env)


def replicas_of(steps: Steps, name: str) -> list[list[str]]:
    return [run.request.replicas for call, run in zip(steps.calls, steps.runs, strict=True) if call[0] == name]


def test_the_canary_goes_first_and_the_rest_follow(release: Trigger, steps: Steps) -> None:
    result = release({**WHAT, "canary": "b"})
    assert result.state == "success", result.error
    for name in ("void", "profile", "plan", "twins", "probe", "publish", "report"):
        assert replicas_of(steps, name) == [["b"], ["a", "c"]], name
    names = steps.names()
    assert names.index("void") < names.index("profile") < names.index("warm") < names.index("judge")
    assert names.index("judge") < [n for n, name in enumerate(names) if name == "void"][1]
    assert names[-1] == "settle" or names[-2:] == ["settle", "report"]
    assert len({run.run_id for run in steps.runs}) == 3
    assert {tuple(run.request.models) for run in steps.runs if run.request.replicas} == {("m",)}
    assert result.task_states["approve"] == result.task_states["take_back"] == "skipped"


def test_a_bad_canary_leaves_the_rest_alone_and_is_taken_back(release: Trigger, steps: Steps) -> None:
    steps.errors = {("judge",): [GiveUpError("only 3 of 10 planned items are ready")]}
    result = release(WHAT)
    assert result.state == "failed"
    assert result.error == "judge: GiveUpError: only 3 of 10 planned items are ready"
    assert replicas_of(steps, "void") == replicas_of(steps, "take_back") == [["a"]]
    assert steps.names()[-1] in ("take_back", "report")
    assert "settle" not in steps.names()
    assert result.task_states["rest.begin"] == result.task_states["done"] == "upstream_failed"


def test_an_embedder_has_no_canary(release: Trigger, steps: Steps) -> None:
    result = release({"what": "embedder", "version": "2"})
    assert result.state == "success", result.error
    assert replicas_of(steps, "void") == [["a", "b", "c", "d"]]
    assert "judge" not in steps.names()
    assert "settle" in steps.names()


def test_a_dry_run_plans_both_parts_and_warms_nothing(release: Trigger, steps: Steps) -> None:
    result = release({**WHAT, "dry_run": True, "needs_approval": True})
    assert result.state == "success", result.error
    assert replicas_of(steps, "plan") == replicas_of(steps, "report") == [["a"], ["b", "c"]]
    assert not {"twins", "warm", "probe", "publish", "publish_profile"} & set(steps.names())
    assert result.task_states["approve"] == "skipped"


@pytest.mark.parametrize(
    ("conf", "named"),
    [({}, "version"), ({"what": "adapter", "version": "2"}, "name"), ({**WHAT, "canary": "d"}, "canary")],
)
def test_a_wrong_field_is_refused_by_its_name(release: Trigger, steps: Steps, conf: dict[str, Any], named: str) -> None:
    result = release(conf)
    assert result.state == "failed"
    assert result.error is not None
    assert result.error.startswith("canary.begin: ConfigurationError")
    assert named in result.error
    assert steps.calls == []


def test_the_arrows_of_a_release(monkeypatch: pytest.MonkeyPatch) -> None:
    dag = parsed_file(monkeypatch, "model_release")
    upstream = {task.task_id: set(task.upstream_task_ids) for task in dag.tasks}
    for part in ("canary", "rest"):
        assert upstream[f"{part}.void"] == {f"{part}.begin"}
        assert upstream[f"{part}.profile"] == {f"{part}.extract"}
        assert upstream[f"{part}.extract"] == {f"{part}.void"}
    assert upstream["judge"] == {"canary.publish"}
    assert upstream["rest.begin"] == {"judge", "approve"}
    assert upstream["take_back"] == {"judge", "approve"}
    assert upstream["settle"] == {"rest.publish"}
    assert dag.get_task("approve").fail_on_reject
    assert [task.task_id for task in dag.tasks if not task.downstream_task_ids] == ["done"]
    for word in ("void", "judge", "approve", "take_back", "settle", "report"):
        assert word in dag.doc_md
