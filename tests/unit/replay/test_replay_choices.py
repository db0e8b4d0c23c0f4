"""The simple rules and the oracle: closed under prefixes, within the budget, and exact where they say so."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.support.block_logs import prefix_logs
from warmup_tasks.errors import ConfigurationError
from warmup_tasks.replay import oracle as oracles
from warmup_tasks.replay.accesses import Accesses
from warmup_tasks.replay.oracle import best_closed_set, oracle, oracle_in_small_cache
from warmup_tasks.replay.rules import by_count, by_recency, last_lru_state
from warmup_tasks.replay.simulate import simulate

RULES = (by_count, by_recency, last_lru_state)


@st.composite
def forests(draw):
    size = draw(st.integers(0, 9))
    parents = [draw(st.integers(-1, node - 1)) for node in range(size)]
    gains = [float(draw(st.integers(-3, 9))) for _ in range(size)]
    weights = draw(st.none() | st.lists(st.integers(0, 4), min_size=size, max_size=size))
    return parents, gains, weights


def closed_sets(parents):
    """Every set of nodes that holds each node's parent too."""
    for count in range(len(parents) + 1):
        for nodes in combinations(range(len(parents)), count):
            if all(parents[node] == -1 or parents[node] in nodes for node in nodes):
                yield nodes


@settings(max_examples=200, deadline=None)
@given(forests(), st.integers(0, 12))
def test_no_closed_set_within_the_budget_gains_more(forest, budget):
    parents, gains, weights = forest
    each = weights or [1] * len(parents)
    best = max(
        sum(gains[node] for node in nodes)
        for nodes in closed_sets(parents)
        if sum(each[node] for node in nodes) <= budget
    )
    chosen = np.flatnonzero(
        best_closed_set(
            np.asarray(parents, np.int32), np.asarray(gains), budget, None if weights is None else np.asarray(weights)
        )
    )
    assert sum(gains[node] for node in chosen) == best
    assert sum(each[node] for node in chosen) <= budget
    assert all(parents[node] == -1 or parents[node] in chosen for node in chosen)


def test_gains_that_never_rise_need_no_programme(monkeypatch):
    monkeypatch.setattr(oracles, "MOST_CELLS", 0)
    chosen = best_closed_set(np.asarray([-1, 0, 1, 0]), np.asarray([5.0, 3.0, 3.0, 2.0]), 3)
    assert chosen.tolist() == [True, True, True, False]
    with pytest.raises(ConfigurationError, match="join runs"):
        best_closed_set(np.asarray([-1, 0]), np.asarray([1.0, 2.0]), 1)


def test_children_before_their_parents_are_refused():
    with pytest.raises(ConfigurationError, match="before their children"):
        best_closed_set(np.asarray([1, -1]), np.asarray([1.0, 1.0]), 1)


@settings(max_examples=60, deadline=None)
@given(prefix_logs(most_requests=9), st.integers(0, 8), st.integers(0, 4), st.booleans())
def test_no_other_choice_hits_more_in_a_cache_that_holds_everything(requests, restart, budget, is_known_only):
    log = Accesses.of(requests)
    parents = log.parents().tolist()
    known = set(log.between(until_s=restart).ids.tolist()) if is_known_only else set(range(log.blocks))
    assume(log.blocks <= 12)

    def hits(warm):
        return simulate(log, log.blocks, warm=list(warm), restart_at_s=restart, window_s=3.0).hit_blocks

    found = oracle(log, restart, 3.0, budget, is_known_only=is_known_only)
    allowed = [nodes for nodes in closed_sets(parents) if len(nodes) <= budget and known.issuperset(nodes)]
    assert len(found) <= budget
    assert known.issuperset(found.tolist())
    assert hits(found) == max(hits(nodes) for nodes in allowed)


def test_in_a_small_cache_it_leaves_out_what_traffic_would_evict():
    """Two blocks of room; traffic brings three new blocks before the old prompt: it cannot be saved."""
    log = Accesses.of([[1], [2], [2], [7], [8], [9], [1]], block_tokens=1)
    found = oracle_in_small_cache(log, 2.0, 9.0, 2, 2)
    assert simulate(log, 2, warm=found, restart_at_s=2.0).hits.tolist() == [1, 0, 0, 0, 0]
    assert log.request(1)[0] in found


def test_the_rules_on_a_log_told_by_hand():
    requests = [[1, 2, 3], [1, 2, 3], [1, 2, 4], [5, 6], [7, 8, 9]]
    log = Accesses.of(requests)

    def chosen(rule, budget):
        return [int(log.names[block]) for block in rule(log, budget)]

    assert chosen(by_count, 4) == [7, 3, 2, 1]
    assert chosen(by_recency, 4) == [5, 9, 8, 7]
    assert chosen(last_lru_state, 4) == [6, 7, 8, 9]
    assert chosen(by_count, 99) == [4, 6, 5, 9, 8, 7, 3, 2, 1]


@settings(max_examples=60, deadline=None)
@given(prefix_logs(), st.integers(0, 12))
def test_count_and_recency_choose_whole_prefixes(requests, budget):
    log = Accesses.of(requests)
    parents = log.parents()
    for rule in RULES:
        chosen = rule(log, budget).tolist()
        assert len(chosen) == len(set(chosen)) == min(budget, log.blocks)
        if rule is not last_lru_state:
            assert all(parents[block] == -1 or parents[block] in chosen for block in chosen)


def test_rules_see_only_the_past(conversations):
    middle = float(conversations.times_s[len(conversations) // 2])
    past = conversations.between(until_s=middle)
    known = set(past.ids.tolist())
    for rule in RULES:
        assert known.issuperset(rule(past, 5_000).tolist())


def test_on_real_conversations_the_rules_reach_a_part_of_what_the_oracle_gains(conversations):
    middle = float(conversations.times_s[len(conversations) // 2])
    past = conversations.between(until_s=middle)

    def hits(warm):
        return simulate(conversations, conversations.blocks, warm=warm, restart_at_s=middle, window_s=300.0).hit_blocks

    cold, best = hits(None), hits(oracle(conversations, middle, 300.0, 10_000))
    shares = [(hits(rule(past, 10_000)) - cold) / (best - cold) for rule in RULES]
    assert all(0.2 < share < 0.8 for share in shares)
