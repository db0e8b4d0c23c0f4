"""What a passive warm-up loads: whole prefixes, hottest first, from the past alone, within every limit."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.block_logs import prefix_logs
from warmup_tasks.parameters import GoldenParameters
from warmup_tasks.replay.accesses import Accesses
from warmup_tasks.tuning.choice import Chooser

WIDE = {"warmup_window_s": 86_400, "prefetch_depth": 8, "top_k": 100_000, "budget_share": 0.9}


def golden(**values):
    return GoldenParameters.model_validate({**WIDE, "prefetch_strategy": "static", **values})


def chosen(accesses, now_s, capacity, parameters):
    return [int(accesses.names[block]) for block in Chooser(accesses).choose(now_s, capacity, parameters)]


PROMPTS = Accesses.of([[1, 2, 3], [1, 2, 4], [1, 2, 3], [7, 8], [7, 8], [9]], [0, 10, 20, 30, 40, 50])


def test_the_hottest_come_first_and_parents_before_children():
    assert chosen(PROMPTS, 60, 100, golden()) == [1, 2, 7, 8, 3]


def test_what_was_asked_once_is_no_candidate_and_neither_is_the_future():
    assert 4 not in chosen(PROMPTS, 60, 100, golden())
    assert chosen(PROMPTS, 25, 100, golden()) == [1, 2, 3]
    assert chosen(PROMPTS, 20, 100, golden()) == [1, 2], "a request at the very moment is not past"


def test_the_window_forgets():
    assert chosen(PROMPTS, 75, 100, golden(warmup_window_s=60)) == [7, 8]


def test_budget_runs_and_branchings_are_limits():
    assert chosen(PROMPTS, 60, 5, golden(budget_share=0.4)) == [1, 2]
    many = Accesses.of([[10 * run] for run in range(1, 15)] * 2)
    assert len(chosen(many, 99, 100, golden(top_k=10))) == 10
    tree = Accesses.of([[1, 2, 3, 4], [1, 2, 3, 5], [1, 2, 6]] * 2)
    assert set(chosen(tree, 99, 100, golden(prefetch_depth=1))) == {1, 2, 3, 6}
    assert set(chosen(tree, 99, 100, golden(prefetch_depth=2))) == {1, 2, 3, 4, 5, 6}


def test_dynamic_prefers_the_recent_static_the_frequent():
    accesses = Accesses.of([[1]] * 5 + [[2]] * 3, [0, 1, 2, 3, 4, 200, 201, 202])
    assert chosen(accesses, 210, 10, golden()) == [1, 2]
    assert chosen(accesses, 210, 10, golden(prefetch_strategy="dynamic", heat_tau_fast_s=20)) == [2, 1]


def test_adaptive_takes_what_would_have_foretold_the_newest_quarter():
    stopped, goes_on = list(range(0, 60, 2)), list(range(60, 75)) + list(range(78, 98, 2))
    drift = Accesses.of([[1]] * len(stopped) + [[2]] * len(goes_on), stopped + goes_on)
    as_dynamic = golden(prefetch_strategy="adaptive", heat_tau_fast_s=10, warmup_window_s=100)
    assert chosen(drift, 100, 10, as_dynamic)[0] == 2
    steady = Accesses.of(
        [*[[1]] * 6, *[[2]] * 3] * 11, list(range(99))
    )  # the long count foretells it, the last 3 do not
    first = {
        strategy: chosen(steady, 99, 10, golden(prefetch_strategy=strategy, heat_tau_fast_s=5, warmup_window_s=90))[0]
        for strategy in ("static", "dynamic", "adaptive")
    }
    assert first == {"static": 1, "dynamic": 2, "adaptive": 1}


@given(prefix_logs(), st.integers(0, 12), st.integers(1, 8), st.sampled_from(["static", "dynamic", "adaptive"]))
@settings(max_examples=60, deadline=None)
def test_a_choice_is_prefix_closed_within_budget_and_blind_to_what_comes_later(log, budget, depth, strategy):
    accesses = Accesses.of(log)
    now = len(log) / 2
    parameters = golden(prefetch_depth=depth, prefetch_strategy=strategy, heat_tau_fast_s=5)
    blocks = Chooser(accesses).choose(now, budget, parameters)
    assert len(set(blocks.tolist())) == len(blocks) <= int(0.9 * budget)
    parents, before = accesses.parents(), set()
    for block in blocks.tolist():
        assert parents[block] < 0 or int(parents[block]) in before
        before.add(block)
    asked = Counter(block for request, names in enumerate(log) if request < now for block in names)
    assert all(asked[int(accesses.names[block])] >= 2 for block in blocks)
    past = Accesses.of([names for request, names in enumerate(log) if request < now])
    assert chosen(past, now, budget, parameters) == [int(accesses.names[block]) for block in blocks]


def test_a_chooser_keeps_nothing_from_one_moment_to_the_next():
    chooser = Chooser(PROMPTS)
    first = chooser.choose(60, 100, golden()).tolist()
    chooser.choose(25, 100, golden(prefetch_strategy="adaptive"))
    assert chooser.choose(60, 100, golden()).tolist() == first
    assert pytest.approx(float(chooser._weights.sum())) == 0
