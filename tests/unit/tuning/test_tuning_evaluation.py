"""The evaluator and the judge, on a service where the right answer is known."""

from dataclasses import replace

import pytest

from warmup_tasks.parameters import GoldenParameters
from warmup_tasks.replay.latency import LatencyModel
from warmup_tasks.tuning.evaluation import MOST_COST, Evaluation, Evaluator, Service
from warmup_tasks.tuning.objective import FALSE_SHARE_CAP, TriggerJudge
from warmup_tasks.tuning.scenario import Disturbances, Scenario
from warmup_tasks.tuning.triggers import Account

REPLICA = Service(capacity_blocks=6000, latency=LatencyModel(20.0, 0.3, 4), slo_ms=150.0)
OFTEN = Disturbances(life_s=300, surge_every_s=5000)


@pytest.fixture(scope="module")
def evaluator(service):
    return Evaluator([Scenario.of(service, 300, 1500, 1, OFTEN)], REPLICA)


def golden(**values):
    return GoldenParameters.model_validate({"warmup_window_s": 300, "prefetch_strategy": "static", **values})


def test_a_threshold_above_everything_is_no_warm_up(evaluator):
    never = evaluator.evaluate(golden(trigger_threshold_ms=5000))
    assert never == evaluator.cold
    assert never.account.firings == 0
    assert never.cost == 0


def test_a_threshold_between_warm_and_cold_pays(evaluator):
    """Cold, a prompt takes 220 ms; warm, 30 ms: the fixed 500 ms hears nothing of it."""
    tuned = evaluator.evaluate(golden(trigger_threshold_ms=100))
    assert tuned.p95_ms < 0.5 * evaluator.cold.p95_ms
    assert tuned.account.firings >= 3
    assert tuned.account.false_firings == 0
    assert tuned.account.recall == 1.0
    assert evaluator.cold.account.recall == 0.0
    assert tuned.computed_tokens < evaluator.cold.computed_tokens


def test_the_same_arguments_give_the_same_figures(evaluator, service):
    again = Evaluator([Scenario.of(service, 300, 1500, 1, OFTEN)], REPLICA)
    parameters = golden(trigger_threshold_ms=100, prefetch_strategy="adaptive")
    assert evaluator.evaluate(parameters) == again.evaluate(parameters) == evaluator.evaluate(parameters)


def test_what_comes_after_the_scored_stretch_changes_nothing(service):
    """Tuning on the earlier part can see nothing of the later one."""
    parameters = golden(trigger_threshold_ms=100)
    whole = Evaluator([Scenario.of(service, 300, 900, 1, OFTEN)], REPLICA)
    cut = Evaluator([Scenario.of(service.between(0, 900), 300, 900, 1, OFTEN)], REPLICA)
    assert whole.evaluate(parameters) == cut.evaluate(parameters)


def figures(p95_ms, spent, saved, *, false=0, doubtful=0, firings=10, recall=(1, 1)):
    account = Account(firings, false, doubtful, spent, saved, recall[1], recall[0], ())
    return Evaluation(20.0, p95_ms, 30.0, account, 0)


def test_the_objective_is_that_of_the_specification():
    fixed = figures(80.0, 10, 10)
    assert figures(40.0, 50, 100).objective(fixed) == pytest.approx(0.5 + 0.2 * 0.5)
    assert figures(80.0, 0, 0).objective(fixed) == 1.0
    assert figures(80.0, 50, 0).objective(fixed) == pytest.approx(1 + 0.2 * MOST_COST)


def test_the_cap_is_kept_with_a_margin_and_recall_against_the_fixed_threshold(evaluator):
    judge = TriggerJudge(evaluator, GoldenParameters())
    judge.fixed = figures(80.0, 10, 10, recall=(2, 4))
    good = judge.judge(figures(40.0, 10, 20, recall=(3, 4)))
    assert all(value <= 0 for value in good.constraints.values())
    assert judge.judge(figures(40.0, 10, 20, doubtful=1)).constraints["false_share"] == pytest.approx(
        0.1 - FALSE_SHARE_CAP
    )
    assert judge.judge(figures(40.0, 10, 20, recall=(1, 4))).constraints["recall"] == pytest.approx(0.25)
    assert good.facts["p95_ms"] == 40.0


def test_trials_change_only_what_they_name(evaluator):
    judge = TriggerJudge(evaluator, golden(top_k=77))
    assert judge.parameters({"trigger_threshold_ms": 90.0}) == golden(top_k=77, trigger_threshold_ms=90.0)
    judged = judge({"trigger_threshold_ms": 100.0})
    assert judged.value < judge.base_value
    assert judged == judge({"trigger_threshold_ms": 100.0})


def test_more_concurrency_ends_a_warm_up_sooner(evaluator):
    slow, fast = (
        evaluator.evaluate(golden(trigger_threshold_ms=100, concurrency=number)).account.latencies_s
        for number in (1, 4)
    )
    assert min(slow) > max(fast)


def test_lives_start_empty(service):
    scenario = Scenario.of(service, 300, 1500, 1, OFTEN)
    calm = Evaluator([replace(scenario, restarts_s=())], REPLICA)
    broken = Evaluator([scenario], REPLICA)
    assert broken.cold.computed_tokens > calm.cold.computed_tokens
