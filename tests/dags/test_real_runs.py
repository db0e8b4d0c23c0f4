"""Real Airflow runs of the nightly DAG, in this process, with fake steps: order, dry run, failures, params."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.dags.nights import SITE_ENV, Night, Steps, rerun, shards_of_fleet
from warmup_tasks.errors import ConfigurationError, ContractError, RetryLaterError
from warmup_tasks.local.airflow_run import TaskEvent, _parse
from warmup_tasks.runs import Run
from warmup_tasks.settings import RunRequest

pytestmark = pytest.mark.airflow


def ended_badly(states: dict[str, str]) -> dict[str, str]:
    return {task: state for task, state in states.items() if state not in ("success", "skipped")}


def xcom_bytes(run_id: str) -> dict[str, int]:
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        rows = session.execute(
            select(XComModel.task_id, XComModel.map_index, XComModel.value, XComModel.key).where(
                XComModel.run_id == run_id
            )
        )
        return {f"{task_id}[{index}].{key}": len(str(value).encode()) for task_id, index, value, key in rows}


def test_a_night_goes_from_the_log_to_the_report(night: Night, steps: Steps, capfd: pytest.CaptureFixture[str]) -> None:
    steps.summary["shards"] = shards_of_fleet({"large": 2, "small": 1})
    events: list[TaskEvent] = []
    request = RunRequest(as_of=datetime(2026, 11, 27, 2, tzinfo=UTC), measure_window_s=300)
    result = night(request.model_dump(mode="json"), env=SITE_ENV, on_task=events.append)

    assert result.state == "success"
    assert result.error is None
    assert set(result.task_states.values()) == {"success"}
    assert {run.run_id for run in steps.runs} == {Run.of(request).run_id}
    names = steps.names()
    assert names[:2] == ["extract", "profile"]
    assert names[2:4] in (["plan", "tune"], ["tune", "plan"]), "neither waits for the other"
    assert names[-4:] == ["publish", "replay", "replay", "report"]
    for profile, replicas in (("large", 2), ("small", 1)):
        mine = [call for call in steps.calls if len(call) > 1 and call[1].split(".")[0] == profile]
        shards = steps.summary["shards"][profile]
        assert mine[:2] == [("replay", profile, "cold"), ("twins", profile)]
        warmed = [call[1] for call in mine if call[0] == "warm"]
        assert sorted(warmed) == sorted(shard for wave in shards.values() for shard in wave)
        assert [shard.split(".")[1] for shard in warmed] == sorted(shard.split(".")[1] for shard in warmed)
        assert len(shards["3"]) == replicas
        assert mine[-3:] == [("probe", profile), ("publish_profile", profile), ("replay", profile, "warm")]
    assert result.task_count == len(result.task_states) == 44 - 8 + 2 * 4 + 6
    assert set(result.stage_seconds) >= {"extract", "profile", "plan", "twins", "warm", "probe", "publish", "report"}
    assert [(e.task, e.state) for e in events[:2]] == [("begin", "running"), ("begin", "success")]
    assert all(e.seconds is not None and e.seconds > 0 for e in events if e.state == "success")
    assert capfd.readouterr().out == ""
    sizes = xcom_bytes(result.run_id)
    assert 0 < max(sizes.values()) < 4096
    assert sum(sizes.values()) < 32_768


def test_a_run_by_hand_with_nothing_given_works_from_defaults(night: Night, steps: Steps) -> None:
    before = datetime.now(UTC)
    result = night({})
    assert result.state == "success"
    run = steps.runs[0]
    assert before <= run.as_of <= datetime.now(UTC)
    assert run.request == RunRequest(as_of=run.as_of)
    assert "replay" not in steps.names()
    assert result.task_states["small.replay_cold"] == result.task_states["replay_warm.small"] == "skipped"
    assert steps.sites[0].lake_uri == SITE_ENV["WARMUP_LAKE"]


def test_a_dry_run_stops_after_the_plan_and_reports(night: Night, steps: Steps) -> None:
    result = night({"dry_run": True}, logical_date=datetime(2026, 11, 27, 14, 30, tzinfo=UTC))
    assert result.state == "success"
    assert [name for name in steps.names() if name != "tune"] == ["extract", "profile", "plan", "report"]
    assert ended_badly(result.task_states) == {}
    assert {run.as_of for run in steps.runs} == {datetime(2026, 11, 27, 14, 30, tzinfo=UTC)}


def test_a_failed_shard_leaves_the_others_their_evidence_and_makes_the_run_red(night: Night, steps: Steps) -> None:
    steps.summary["shards"] = shards_of_fleet({"small": 2})
    steps.errors = {("warm", "small.w1.0"): [ConfigurationError("adapter a1: no such path")]}
    result = night()
    assert result.state == "failed"
    assert result.error == "small.wave_1.warm[0]: ConfigurationError: adapter a1: no such path"
    assert ended_badly(result.task_states) == {"small.wave_1.warm[0]": "failed", "done": "upstream_failed"}
    assert steps.calls.count(("warm", "small.w1.0")) == 1
    assert {("warm", "small.w1.1"), ("warm", "small.w3.0"), ("probe", "small")} <= set(steps.calls)
    assert steps.names()[-2:] == ["publish", "report"]


def test_an_error_that_may_pass_is_tried_again(night: Night, steps: Steps) -> None:
    steps.errors = {("warm", "small.w3.0"): [RetryLaterError("the replica restarts")]}
    result = night()
    assert result.state == "success"
    assert result.error is None
    assert steps.calls.count(("warm", "small.w3.0")) == 2


def test_a_tuning_that_fails_in_every_try_leaves_the_night_alone(night: Night, steps: Steps) -> None:
    steps.errors = {("tune",): [ConfigurationError("no such lake")]}
    result = night()
    assert result.state == "success"
    assert ended_badly(result.task_states) == {"tune": "failed"}
    assert steps.names()[-2:] == ["publish", "report"]


def test_no_twins_leave_that_profile_cold_and_the_others_go_on(night: Night, steps: Steps) -> None:
    steps.summary["shards"] = shards_of_fleet({"large": 1, "small": 1})
    steps.errors = {("twins", "large"): [ContractError("no plan")]}
    result = night(env=SITE_ENV)
    assert result.state == "failed"
    assert not any(call[0] in ("warm", "probe") and call[1].startswith("large") for call in steps.calls)
    assert ("probe", "small") in steps.calls
    assert steps.names()[-2:] == ["publish", "report"]


def test_without_a_plan_nothing_is_sent_anywhere(night: Night, steps: Steps) -> None:
    steps.errors = {("plan",): [ConfigurationError("no replica fits")]}
    result = night()
    assert result.state == "failed"
    assert result.error == "plan: ConfigurationError: no replica fits"
    assert [name for name in steps.names() if name != "tune"] == ["extract", "profile", "plan"]


def test_a_failed_shard_is_cleared_and_repaired(
    night: Night, steps: Steps, one_profile: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    steps.errors = {("warm", "small.w3.0"): [ContractError("no such prefix")]}
    first = night()
    assert first.state == "failed"
    asked = steps.runs[0]
    steps.calls.clear(), steps.runs.clear()
    for name, value in one_profile.items():
        monkeypatch.setenv(name, value)
    states = rerun(first.run_id, "small.wave_3.warm")
    assert set(states.values()) <= {"success", "skipped"}
    assert steps.calls[:2] == [("warm", "small.w3.0"), ("probe", "small")]
    assert steps.names() == ["warm", "probe", "publish_profile", "publish", "report"]
    assert {run.run_id for run in steps.runs} == {asked.run_id}


def test_a_refused_publication_is_still_reported(night: Night, steps: Steps) -> None:
    steps.errors = {("publish",): [ContractError("0.8 of the items failed")]}
    result = night({"measure_window_s": 60})
    assert result.state == "failed"
    assert ("replay", "small", "warm") not in steps.calls
    assert steps.names()[-1] == "report"


def test_a_profile_without_replicas_is_no_failure(night: Night, steps: Steps) -> None:
    steps.summary["shards"] = shards_of_fleet({"small": 0})
    result = night()
    assert result.state == "success"
    assert result.task_states["small.wave_3.warm"] == "skipped"
    assert "warm" not in steps.names()
    assert steps.names()[-3:] == ["publish_profile", "publish", "report"]


def test_a_wrong_param_is_refused_by_its_name_before_anything_runs(night: Night, steps: Steps) -> None:
    with pytest.raises(ConfigurationError, match="param top_k: 'many' is not of type 'integer', 'null'"):
        night({"top_k": "many"})
    assert steps.calls == []


def test_what_the_form_lets_through_the_first_task_refuses(night: Night, steps: Steps) -> None:
    result = night({"top_kk": 3})
    assert result.state == "failed"
    assert result.task_states["begin"] == "failed"
    assert "top_kk" in (result.error or "")
    assert steps.calls == []


def test_a_dag_file_that_does_not_parse_is_named(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("from airflow.sdk import dag\nimport nothing_of_the_kind\n")
    with pytest.raises(ConfigurationError, match=r"broken\.py: ModuleNotFoundError.*nothing_of_the_kind"):
        _parse("nightly_warmup", tmp_path)


@pytest.mark.parametrize("what", ["airflow_home", "dags_folder"])
def test_one_process_serves_one_airflow(night: Night, tmp_path: Path, what: str) -> None:
    with pytest.raises(ConfigurationError, match="already runs Airflow in"):
        night(**{what: tmp_path})
    assert list(tmp_path.iterdir()) == []
