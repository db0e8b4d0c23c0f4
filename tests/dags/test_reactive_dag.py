"""``reactive_warmup``: its shape, and real runs with fake steps in which live events are injected."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import redis
import yaml

from tests.dags.nights import DAGS, SITE_ENV, Night, Steps, shards_of_fleet
from warmup_tasks.items import WAVES, ItemKind
from warmup_tasks.lake import Lake
from warmup_tasks.local.airflow_run import DagRunResult
from warmup_tasks.resources import include_path
from warmup_tasks.runs import Run
from warmup_tasks.serving.epochs import EpochRecord, EpochStore
from warmup_tasks.serving.events import EventKind, EventStream, LiveEvent
from warmup_tasks.signals import Signal

FILE = DAGS / "reactive_warmup.py"
NOW = datetime.now(UTC)


@pytest.fixture
def dag(monkeypatch: pytest.MonkeyPatch) -> Any:
    from airflow.dag_processing.dagbag import DagBag

    monkeypatch.setenv("WARMUP_PROFILES", str(include_path("profiles.yaml")))
    bag = DagBag(dag_folder=str(FILE))
    assert bag.import_errors == {}
    return bag.dags["reactive_warmup"]


def test_it_waits_for_live_events_and_runs_one_at_a_time(dag: Any) -> None:
    (asset,) = dag.timetable.asset_condition.objects
    (watcher,) = asset.watchers
    made_by, kwargs = watcher.trigger.serialize()
    assert made_by == "warmup_tasks.airflow.triggers.LiveEventTrigger"
    assert kwargs == {"group": "reactive_warmup", "debounce_s": 5.0}
    assert (dag.max_active_runs, dag.catchup) == (1, False)


def test_new_lives_are_proved_and_surges_only_loaded(dag: Any) -> None:
    names = {task.task_id for task in dag.tasks}
    assert {"joined.large.twins", "joined.large.probe", "joined.publish"} <= names
    assert not {"surged.large.twins", "surged.large.probe", "surged.publish"} & names
    assert dag.get_task("surged.large.recheck").upstream_task_ids == {f"surged.large.wave_{WAVES[-1]}.warm"}
    for task in dag.tasks:
        group, _, step = task.task_id.partition(".")
        is_work = step.startswith(("large.", "small.")) and step.endswith((".twins", ".warm", ".probe", ".recheck"))
        assert task.queue == (f"gpu.{step.partition('.')[0]}" if is_work else "default"), (group, step)


def test_each_group_s_last_task_sees_every_failure(dag: Any) -> None:
    leaves = [task.task_id for task in dag.tasks if not task.downstream_task_ids]
    assert sorted(leaves) == ["joined.done", "surged.done", "surged.warmed"]
    for name in ("large", "small"):
        seen = dag.get_task("surged.done").upstream_task_ids
        assert {f"surged.{name}.wave_{wave}.warm" for wave in WAVES} | {f"surged.{name}.recheck"} <= seen


def test_the_runbook_names_every_step_that_can_be_red(dag: Any) -> None:
    quiet = ("go_ahead", "is_any", "warmed", "probed", "shards")
    for task in dag.tasks:
        words = [word for word in task.task_id.split(".") if not word.startswith("wave_")]
        if words[-1] not in quiet:
            assert words[-1] in dag.doc_md, task.task_id


class Site:
    """A site of two replicas whose steps are fake; what is weighed is real."""

    def __init__(self, folder: Path, client: redis.Redis, url: str, night: Night, inject: Any) -> None:
        fleet = {
            "models": [{"name": "m"}],
            "replicas": [
                {"name": f"r{n}", "url": f"http://127.0.0.1:{n + 1}", "profile": "small", "model": "m"} for n in (0, 1)
            ],
            "embedder": {"embedder": "e", "revision": "1", "dimensions": 4},
        }
        (folder / "fleet.yaml").write_text(yaml.safe_dump(fleet))
        self.lake, self.redis, self._night, self._inject = Lake(str(folder / "lake")), client, night, inject
        self._env = {
            **SITE_ENV, "WARMUP_LAKE": str(folder / "lake"), "WARMUP_REDIS_URL": url, "WARMUP_LOG": "requests.jsonl",
            "WARMUP_FLEET": str(folder / "fleet.yaml"), "WARMUP_PROFILES": "",
        }  # fmt: skip

    def a_night_before(self) -> None:
        self.lake.publish(
            "demand", f"{NOW:%Y%m%dT%H%M%SZ}-abcd0123", {}, {"lookback_s": 86_400, "step_tokens": {"m": 16}}
        )

    def event(self, kind: EventKind, replica: str = "r0", epoch: str = "e1", event_id: str = "1-0") -> dict[str, Any]:
        signals = (Signal.TTFT,) if kind is EventKind.SURGE else ()
        event = LiveEvent(kind=kind, replica=replica, model="m", epoch=epoch, time=NOW, signals=signals)
        return {"id": event_id, **event.model_dump(mode="json")}

    def publish_epoch(self, replica: str = "r0", epoch: str = "e1") -> None:
        EpochStore(self.redis).publish(EpochRecord(replica=replica, epoch=epoch, observed_at=NOW), ttl_s=15)

    def run(self, *events: dict[str, Any], conf: dict[str, Any] | None = None) -> DagRunResult:
        self._inject(list(events))
        return self._night(conf, dag_id="reactive_warmup", env=self._env)


@pytest.fixture
def site(
    tmp_path: Path, redis_client: redis.Redis, redis_url: str, night: Night, monkeypatch: pytest.MonkeyPatch,
    one_profile: dict[str, str], steps: Steps,
) -> Iterator[Site]:  # fmt: skip
    from warmup_tasks import nightly, upkeep
    from warmup_tasks.airflow import reactions

    steps.summary |= {"shards": shards_of_fleet({"small": 1})}
    survey = steps.step("profile")
    monkeypatch.setattr(nightly, "profile", lambda site, run: {**survey(site, run), "requests": 3})
    monkeypatch.setattr(upkeep, "recheck", lambda site, replicas: steps.step("recheck")(site, None, *replicas))

    def inject(events: list[dict[str, Any]]) -> None:
        monkeypatch.setattr(reactions, "triggering_events", lambda: events)

    found = Site(tmp_path, redis_client, redis_url, night, inject)
    found._env["WARMUP_PROFILES"] = one_profile["WARMUP_PROFILES"]
    return found


def runs_of(steps: Steps) -> list[Run]:
    return [run for run in steps.runs if run is not None]


def test_a_replica_that_joined_is_warmed_proved_and_published_alone(site: Site, steps: Steps) -> None:
    site.a_night_before()
    site.publish_epoch()
    result = site.run(site.event(EventKind.JOINED))
    assert result.state == "success", result.error
    assert [name for name in steps.names() if name != "warm"] == [
        "profile", "plan", "twins", "probe", "publish_profile", "publish",
    ]  # fmt: skip
    (run,) = {run.run_id: run for run in runs_of(steps)}.values()
    assert (run.request.replicas, run.request.models, run.request.demand_of) == (["r0"], ["m"], "newest")
    assert run.request.kinds == [ItemKind.ADAPTER, ItemKind.KV_PREFIX]
    assert run.policy.is_paced
    assert result.task_states["surged.small.recheck"] == "skipped"
    assert EventStream(site.redis).outcomes() == {"fired": 1}


def test_a_surge_reads_the_log_on_loads_within_its_budget_and_looks_at_the_old_marks(site: Site, steps: Steps) -> None:
    site.a_night_before()
    site.publish_epoch()
    result = site.run(site.event(EventKind.SURGE))
    assert result.state == "success", result.error
    assert [name for name in steps.names() if name != "warm"] == ["extract", "profile", "plan", "recheck"]
    assert ("recheck", "r0") in steps.calls
    (run,) = {run.run_id: run for run in runs_of(steps)}.values()
    assert (run.policy.lookback_s, run.policy.horizon_s, run.policy.is_paced) == (300, 300, True)
    assert run.parameters.budget_share == 0.25
    assert run.parameters.heat_tau_slow_s == run.parameters.heat_tau_fast_s
    assert result.task_states["joined.publish"] == "skipped"


def test_several_events_of_a_replica_are_one_and_the_new_life_counts(site: Site, steps: Steps) -> None:
    site.a_night_before()
    site.publish_epoch()
    events = [site.event(EventKind.JOINED, epoch="e0"), site.event(EventKind.RESTARTED, event_id="2-0")]
    result = site.run(*events, site.event(EventKind.SURGE, event_id="3-0"), site.event(EventKind.JOINED, "gone"))
    assert result.state == "success", result.error
    assert steps.names().count("publish") == 1
    assert "recheck" not in steps.names()
    assert {run.request.replicas[0] for run in runs_of(steps)} == {"r0"}
    assert EventStream(site.redis).outcomes() == {
        "fired": 1, "another event of the replica says more": 2, "the fleet file does not list the replica": 1,
    }  # fmt: skip


def test_an_event_handed_on_twice_sets_off_one_warm_up(site: Site, steps: Steps) -> None:
    site.a_night_before()
    site.publish_epoch()
    assert site.run(site.event(EventKind.JOINED)).state == "success"
    steps.calls.clear()
    result = site.run(site.event(EventKind.JOINED))
    assert result.state == "success"
    assert steps.calls == []
    assert result.task_states["joined.done"] == "skipped"
    assert EventStream(site.redis).outcomes() == {"fired": 1, "a run has taken it up already": 1}


def test_without_events_or_names_a_run_by_hand_takes_what_is_not_ready(site: Site, steps: Steps) -> None:
    assert site.run(conf={}).state == "success"
    assert {tuple(run.request.replicas) for run in runs_of(steps)} == {("r0", "r1")}
    steps.calls.clear(), steps.runs.clear()
    assert site.run(conf={"replicas": ["r1"], "is_surge": True}).state == "success"
    assert {tuple(run.request.replicas) for run in runs_of(steps)} == {("r1",)}
    assert "publish" not in steps.names()
