"""When a trigger fires, and how its firings are accounted for (spec 2.3)."""

import numpy as np
import pytest

from warmup_tasks.replay.triggers import Firing
from warmup_tasks.signals import Conditions, Rolling
from warmup_tasks.tuning.triggers import PassiveTrigger, account

BLOCKS = np.asarray([1, 2], np.int32)


def figures(time_s, p95=None, *, qps=1.0, qps_before=1.0, miss=0.1, miss_before=0.1, is_warming=False):
    return Rolling(time_s, 0, p95, qps, qps_before, miss, miss_before, is_warming)


def fired_at(trigger, ticks):
    return [tick.time_s for tick in ticks if trigger(tick) is not None]


def trigger(threshold_ms=500.0, **conditions):
    return PassiveTrigger(threshold_ms, Conditions(**conditions), lambda now_s: BLOCKS)


def test_a_crossing_fires_once_until_the_signal_has_been_below():
    p95 = [400, 600, 700, 450, 501, None, 800, 100, 500]
    assert fired_at(trigger(), [figures(time, one) for time, one in enumerate(p95)]) == [1, 4]


def test_a_missing_figure_changes_nothing_so_a_restart_alone_is_no_crossing():
    ticks = [figures(0, 600), figures(1, None), figures(2, None), figures(3, 600), figures(4, 100), figures(5, 600)]
    assert fired_at(trigger(), ticks) == [0, 5]


def test_a_warm_up_under_way_is_not_started_again():
    ticks = [figures(0, 600, is_warming=True), figures(1, 600), figures(2, 100), figures(3, 600)]
    assert fired_at(trigger(), ticks) == [3]


def test_other_signals_are_or_ed_and_off_by_default():
    surge = [figures(0, 100), figures(1, 100, qps=5.0), figures(2, 100, qps=6.0), figures(3, 100)]
    assert fired_at(trigger(), surge) == []
    assert fired_at(trigger(qps_ratio=3), surge) == [1]
    cold = [figures(0, 100), figures(1, 100, miss=0.9, miss_before=None), figures(2, 100, miss=0.15)]
    assert fired_at(trigger(), cold) == []
    assert fired_at(trigger(miss_rise=0.3), cold) == [1], "what was usual before a restart stays known"
    assert fired_at(trigger(qps_ratio=3, miss_rise=0.3), [*surge, *cold]) == [1, 1]


@pytest.mark.parametrize("wrong", [{"qps_ratio": 1.0}, {"miss_rise": 0.0}, {"miss_rise": 1.0}, {"speed": 2}])
def test_conditions_that_mean_nothing_are_refused(wrong):
    with pytest.raises(ValueError, match="Conditions"):
        Conditions(**wrong)


def firing(at, spent, saved, resident=None):
    return Firing(0, at, at + 10 if resident is None else resident, spent, saved)


def test_false_means_that_less_was_saved_than_spent():
    found = account([firing(0, 100, 99), firing(50, 100, 100), firing(90, 100, 149), firing(95, 100, 150)], [], 1000)
    assert (found.firings, found.false_firings, found.doubtful_firings) == (4, 1, 3)
    assert found.false_share == 0.25
    assert found.doubtful_share == 0.75
    assert (found.spent_tokens, found.saved_tokens) == (400, 498)
    assert found.recall is None


def test_a_firing_that_loads_nothing_counts_nowhere_but_for_recall():
    found = account([firing(100, 0, 0)], [(110, 150)], 1000)
    assert (found.firings, found.false_share, found.recall) == (0, None, 1.0)


def test_what_fires_less_than_300_s_before_the_end_cannot_be_judged():
    assert account([firing(701, 100, 0)], [], 1000).firings == 0
    assert account([firing(700, 100, 0)], [], 1000).firings == 1


@pytest.mark.parametrize(
    ("fired", "is_preceded"), [(699, False), (700, True), (1000, True), (1030, True), (1030.5, False)]
)
def test_a_surge_is_preceded_from_5_minutes_before_up_to_the_moment_that_makes_it_one(fired, is_preceded):
    assert account([firing(fired, 1, 1)], [(1000, 1060)], 5000).preceded_surges == int(is_preceded)


def test_latency_is_known_of_warm_ups_that_ended():
    found = account([firing(0, 1, 1), Firing(0, 20, None, 1, 1)], [], 1000)
    assert found.latencies_s == (10,)
