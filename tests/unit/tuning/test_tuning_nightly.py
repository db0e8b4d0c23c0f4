"""The tuning step of a night: what it publishes, when last night's values stay, and what the next plan takes."""

from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pytest

from tests.support.service_log import BLOCK, rows_of, service_requests, states
from warmup_tasks.demand.embedder import default_embedder_identity
from warmup_tasks.errors import ConfigurationError
from warmup_tasks.fleet_file import AdapterSpec, FleetFile, ModelSpec, ReplicaSpec
from warmup_tasks.lake.schemas import REQUESTS
from warmup_tasks.lake.store import Lake
from warmup_tasks.parameters import GoldenParameters
from warmup_tasks.resources import sql
from warmup_tasks.runs import Origins, Run
from warmup_tasks.settings import RunPolicy, RunRequest
from warmup_tasks.tuning import published
from warmup_tasks.tuning.nightly import Budget, Verdict, _alone, tune
from warmup_tasks.tuning.published import effective_parameters, tuned_values
from warmup_tasks.tuning.replicas import of_survey
from warmup_tasks.tuning.study import Judgement, open_study
from warmup_tasks.tuning.traffic import TrafficClass, class_accesses, partition_name, traffic_classes

AS_OF = datetime(2026, 11, 27, 2, tzinfo=UTC)
SPAN_S = 3000
NAME = "m.base.chat"
FIRST_NIGHT = f"{NAME}.20261127T020000Z"


@pytest.fixture
def lake(tmp_path):
    lake = Lake(str(tmp_path / "lake"))
    rows = rows_of(*service_requests(SPAN_S, 2.0, 60), begin=AS_OF - timedelta(seconds=SPAN_S))
    rows += rows_of(*service_requests(SPAN_S, 0.02, 5), begin=AS_OF - timedelta(seconds=SPAN_S), adapter="legal",
                    prefix="a")  # fmt: skip
    rows.append({**rows[0], "request_id": "stranger", "model": "other"})
    lake.publish("requests", "2026-11-27", {"requests": pa.Table.from_pylist(rows, schema=REQUESTS)})
    return lake


@pytest.fixture
def fleet():
    return FleetFile(
        models=[ModelSpec(name="m", weights_revision="r1"), ModelSpec(name="n", weights_revision="r1")],
        replicas=[ReplicaSpec(name="m-0", url="http://m-0", profile="gpu", model="m")],
        adapters=[AdapterSpec(name="legal", version="1", path="/legal", base_model="m")],
        embedder=default_embedder_identity(),
    )


def run_at(as_of=AS_OF, **wishes):
    return Run.of(RunRequest(as_of=as_of, seed=1, **wishes), RunPolicy(lookback_s=SPAN_S))


def budget(trials=7, time_s=1e9, clock=lambda: 0.0):
    return Budget(time_s=time_s, clock=clock, trials=trials)


def tune_with(fleet, lake, run, budget, **options):
    return tune(lake, run, fleet.served, of_survey(states()), budget, **options)


def low_threshold(judge):
    """A stand-in for the study's judge that loves thresholds near 100 ms, so that seven trials find something."""
    return lambda params: Judgement(abs(np.log(params["trigger_threshold_ms"] / 100)))


def tuned_once(lake, fleet, as_of=AS_OF, **wishes):
    return tune_with(fleet, lake, run_at(as_of, **wishes), budget(14), slo_ms=150.0)


def test_a_night_publishes_values_that_did_better_on_traffic_it_never_saw(lake, fleet):
    summary = tuned_once(lake, fleet)
    night = summary["classes"][NAME]
    assert night["verdict"] == Verdict.TUNED
    assert night["later"]["best"]["p95_ms"] < night["later"]["fixed"]["p95_ms"]
    assert night["trials"] == {"complete": 14}
    assert sum(night["total_effects"].values()) > 0.5
    assert summary["classes"]["m.legal.chat"]["verdict"] == Verdict.TOO_LITTLE
    assert set(summary["classes"]) == {NAME, "m.legal.chat"}, "the fleet serves no model called other"
    parameters = {row["name"]: row for row in lake.read(night["ref"], "parameters").to_pylist()}
    assert set(parameters) == set(GoldenParameters.model_fields)
    assert parameters["trigger_threshold_ms"]["is_tuned"]
    assert not parameters["lead_time_s"]["is_tuned"]
    account = f"tuning_nights/{run_at().run_id}"
    assert lake.read(account, "trials").num_rows == 14
    assert lake.meta(account)["classes"] == summary["classes"]
    curves = lake.read(account, "curves").to_pylist()
    assert {row["parameter"] for row in curves} == set(night["total_effects"])


def test_a_second_run_of_the_same_night_changes_nothing(lake, fleet):
    first = tuned_once(lake, fleet)["classes"][NAME]
    again = tuned_once(lake, fleet)["classes"][NAME]
    assert again == first, "the study was complete; nothing was run twice, nothing published anew"
    assert lake.partitions("tuning") == [FIRST_NIGHT]


def test_all_trials_pruned_last_nights_values_stay_and_the_summary_says_so(lake, fleet):
    first = tuned_once(lake, fleet)["classes"][NAME]
    later = run_at(AS_OF + timedelta(minutes=1))
    summary = tune_with(
        fleet,
        lake,
        later,
        budget(3),
        slo_ms=150.0,
        judge_of=lambda judge: lambda params: None,
    )
    night = summary["classes"][NAME]
    assert night["verdict"] == "last values stay: all trials were pruned"
    assert night["trials"] == {"pruned": 3}
    assert night["values"] == first["values"]
    assert lake.partitions("tuning") == [FIRST_NIGHT]


def test_a_night_without_history_keeps_the_defaults_when_nothing_is_feasible(lake, fleet):
    never = Judgement(0.1, {"limit": 1.0})
    summary = tune_with(fleet, lake, run_at(), budget(3), judge_of=lambda judge: lambda params: never)
    night = summary["classes"][NAME]
    assert night["verdict"] == Verdict.NOT_FEASIBLE
    assert GoldenParameters.model_validate(night["values"]) == GoldenParameters()
    assert night["ref"] is None
    assert lake.partitions("tuning") == []


def test_yesterdays_best_is_tried_first_and_defaults_second(lake, fleet):
    first = tuned_once(lake, fleet)["classes"][NAME]
    tried = []

    def spy(judge):
        return lambda params: tried.append(params) or judge(params)

    tune_with(
        fleet,
        lake,
        run_at(AS_OF + timedelta(minutes=1)),
        budget(3),
        slo_ms=150.0,
        judge_of=spy,
    )
    assert tried[0] == first["values"]
    assert tried[1]["trigger_threshold_ms"] == 500.0


def test_weekly_parameters_are_held_between_two_sundays(lake, fleet):
    first = tuned_once(lake, fleet)["classes"][NAME]
    tried = []

    def spy(judge):
        return lambda params: tried.append(params) or judge(params)

    tune_with(
        fleet,
        lake,
        run_at(AS_OF + timedelta(minutes=1)),
        budget(6),
        slo_ms=150.0,
        judge_of=spy,
    )
    strategy = first["values"]["prefetch_strategy"]
    assert {params["prefetch_strategy"] for params in tried} == {strategy}
    assert len({params["trigger_threshold_ms"] for params in tried}) > 3


def test_a_trial_that_a_killed_worker_left_open_is_closed_by_the_next_night(lake, fleet, tmp_path):
    from optuna.distributions import IntDistribution
    from optuna.samplers import RandomSampler

    journal = tmp_path / "journal"
    open_study(f"{NAME}@20261126T020000Z", RandomSampler(seed=0), journal).ask({"n": IntDistribution(1, 9)})
    summary = tune_with(fleet, lake, run_at(), budget(2), journal=journal, judge_of=low_threshold)
    assert summary["classes"][NAME]["stale_closed"] == 1
    assert summary["journal"] == str(journal)


def test_without_time_nothing_is_tried(lake, fleet):
    summary = tune_with(fleet, lake, run_at(), budget(time_s=0))
    assert summary["classes"][NAME]["verdict"] == Verdict.NO_TIME
    assert tune_with(fleet, lake, run_at(models=["n"]), budget())["classes"] == {}


def test_the_next_plan_takes_defaults_then_tuned_values_then_the_operators(lake, fleet):
    assert effective_parameters(lake, AS_OF) == (GoldenParameters(), Origins())
    night = tuned_once(lake, fleet)["classes"][NAME]
    taken, origins = effective_parameters(lake, AS_OF + timedelta(days=1), for_plan=False)
    assert origins.tuning_ref == night["ref"]
    assert origins.told("trigger_threshold_ms") == "tuned on 2026-11-27"
    assert origins.told("lead_time_s") == "default"
    assert taken.model_dump(mode="json").items() >= night["values"].items()
    mine, whose = effective_parameters(lake, AS_OF + timedelta(days=1), {"trigger_threshold_ms": 321.0}, for_plan=False)
    assert mine == taken.model_copy(update={"trigger_threshold_ms": 321.0})
    assert whose.told("trigger_threshold_ms") == "set by the operator"
    assert whose.told("top_k") == "tuned on 2026-11-27"
    assert effective_parameters(lake, AS_OF, for_plan=False) == (GoldenParameters(), Origins()), (
        "its own night does not"
    )
    assert effective_parameters(lake, AS_OF + timedelta(days=1), models=["n"], for_plan=False) == (
        GoldenParameters(),
        Origins(),
    )
    with pytest.raises(ConfigurationError, match="top_k"):
        effective_parameters(lake, AS_OF, {"top_k": 1})


def publish(lake, as_of, threshold, *, requests, suits_plan=True, name=NAME):
    meta = {
        "model": "m", "adapter": None, "request_type": "chat", "requests": requests,
        "suits_plan": suits_plan, "tuned_at": {},
    }  # fmt: skip
    nothing = published.Sensitivity({}, [])
    return published.publish(lake, name, as_of, {"trigger_threshold_ms": threshold}, nothing, meta)


def test_a_backfill_does_not_see_later_nights_and_the_larger_class_rules(lake):
    for day, threshold in ((1, 100.0), (2, 200.0), (3, 300.0)):
        publish(lake, AS_OF + timedelta(days=day), threshold, requests=10)
    old = tuned_values(lake, "m", None, "chat", AS_OF + timedelta(days=2, hours=5))
    assert old is not None
    assert old.values == {"trigger_threshold_ms": 200.0}
    assert old.ref == f"tuning/{NAME}.20261129T020000Z@000001"
    publish(lake, AS_OF + timedelta(hours=1), 50.0, requests=10)
    newest = tuned_values(lake, "m", None, "chat", AS_OF + timedelta(days=9))
    assert newest is not None
    assert newest.values == {"trigger_threshold_ms": 300.0}, "a backfill leaves the values of later nights in force"
    assert tuned_values(lake, "m", None, "chat", AS_OF) is None
    publish(lake, AS_OF, 77.0, requests=1000, name="m.legal.chat")
    assert effective_parameters(lake, AS_OF + timedelta(days=9))[0].trigger_threshold_ms == 77.0


def test_values_for_triggers_alone_stay_out_of_the_plan(lake):
    publish(lake, AS_OF, 88.0, requests=10, suits_plan=False)
    assert effective_parameters(lake, AS_OF + timedelta(days=1))[0].trigger_threshold_ms == 500.0
    assert effective_parameters(lake, AS_OF + timedelta(days=1), for_plan=False)[0].trigger_threshold_ms == 88.0


def test_classes_are_counted_under_the_fleets_names(lake, fleet):
    since = AS_OF - timedelta(seconds=SPAN_S)
    found = traffic_classes(lake, fleet.served, since, AS_OF)
    assert [(one.name, one.requests) for one in found] == [(NAME, 6000), ("m.legal.chat", 60)]
    assert traffic_classes(Lake("memory://empty"), fleet, since, AS_OF) == []
    accesses = class_accesses(lake, found[1], since, AS_OF, BLOCK)
    assert accesses is not None
    assert len(accesses) == 60
    nobody = TrafficClass("n", None, "chat", 0, (("n", None),))
    assert class_accesses(lake, nobody, since, AS_OF, BLOCK) is None


def test_names_that_no_folder_may_have_stay_apart():
    names = {partition_name(model, None, "chat") for model in ("org/m", "org-m", "org.m", "")}
    assert len(names) == 4
    assert partition_name("m", "legal", "chat") == "m.legal.chat"
    assert all(name.replace(".", "").replace("-", "").isalnum() for name in names)


def test_statements_give_their_columns_on_a_tiny_input(lake):
    rows = rows_of([0, 1, 2], [[1], [2], [3]], begin=AS_OF)
    rows[1] |= {"adapter": "a", "request_type": None}
    rows[2]["request_type"] = "embedding"
    requests = pa.Table.from_pylist(rows, schema=REQUESTS)
    window = {"since": AS_OF, "until": AS_OF + timedelta(seconds=60)}
    counted = lake.query(sql("tuning/traffic_classes"), {"requests": requests}, window).to_pylist()
    assert counted == [
        {"model": "m", "adapter": "a", "request_type": "unknown", "requests": 1},
        {"model": "m", "adapter": None, "request_type": "chat", "requests": 1},
    ]
    names = pa.table({"model": ["m"], "adapter": pa.array([None], pa.string()), "request_type": ["chat"]})
    own = lake.query(sql("tuning/class_requests"), {"requests": requests, "names": names}, window)
    assert own.schema.names == REQUESTS.names
    assert own["request_id"].to_pylist() == ["r0"]


def test_a_class_that_fails_leaves_the_others_theirs_and_the_account_says_so(lake, fleet):
    def broken(judge):
        raise RuntimeError("a prompt may stand here")

    summary = tune_with(fleet, lake, run_at(), budget(3), judge_of=broken)
    night = summary["classes"][NAME]
    assert night["verdict"] == Verdict.FAILED
    assert night["problem"] == "RuntimeError"
    assert summary["classes"]["m.legal.chat"]["verdict"] == Verdict.TOO_LITTLE
    assert lake.meta(f"tuning_nights/{run_at().run_id}")["classes"] == summary["classes"]


def test_two_processes_do_not_tune_with_one_journal(lake, fleet, tmp_path):
    journal = tmp_path / "journal"
    with _alone(journal):
        summary = tune_with(fleet, lake, run_at(), budget(2), journal=journal)
    assert summary["problem"].startswith("ConfigurationError: another process is tuning")
    assert summary["classes"] == {}
    again = tune_with(fleet, lake, run_at(), budget(2), journal=journal, judge_of=low_threshold)
    assert again["problem"] is None


def test_values_that_the_fields_no_longer_take_are_left_out(lake):
    publish(lake, AS_OF, 1.0, requests=10)
    found = effective_parameters(lake, AS_OF + timedelta(days=1), {"top_k": 50})
    assert found == (GoldenParameters(top_k=50), Origins(set_by_operator=("top_k",)))


def test_progress_counts_trials_over_all_classes(lake, fleet):
    seen = []
    tune_with(fleet, lake, run_at(), budget(3), judge_of=low_threshold, progress=lambda *done: seen.append(done))
    assert seen == [(1, 6), (2, 6), (3, 6), (3, 6), (6, 6)]
