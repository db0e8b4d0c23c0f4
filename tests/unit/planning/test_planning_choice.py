"""Ours against the simple rules on accesses: whole prefixes, within the budget, from the past alone, and worth it."""

import gzip

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.block_logs import prefix_logs
from warmup_tasks.planning.choice import BlockChooser
from warmup_tasks.replay.accesses import Accesses
from warmup_tasks.replay.oracle import oracle
from warmup_tasks.replay.rules import by_count, by_recency, last_lru_state
from warmup_tasks.replay.simulate import simulate

WINDOW_S = 300.0


@settings(max_examples=80, deadline=None)
@given(prefix_logs(), st.integers(0, 12), st.integers(0, 25))
def test_a_choice_consists_of_whole_prefixes_of_the_past(requests, budget, restart):
    log = Accesses.of(requests)
    past = log.between(until_s=restart)
    chosen = BlockChooser(log, restart, 5.0).choose(budget).tolist()
    parents = log.parents()
    assert len(chosen) == len(set(chosen)) == min(budget, len(set(past.ids.tolist())))
    assert set(chosen) <= set(past.ids.tolist())
    place = {block: number for number, block in enumerate(chosen)}
    assert all(parents[block] == -1 or place[parents[block]] > place[block] for block in chosen), "hottest last"


@settings(max_examples=40, deadline=None)
@given(prefix_logs(), st.integers(1, 12), st.integers(1, 25))
def test_what_comes_later_changes_no_choice(requests, budget, restart):
    whole, past = Accesses.of(requests), Accesses.of(requests[:restart])
    chosen = BlockChooser(whole, restart, 5.0).choose(budget)
    assert chosen.tolist() == BlockChooser(past, restart, 5.0).choose(budget).tolist()


@pytest.fixture(scope="module")
def conversations(data_dir):
    with gzip.open(data_dir / "mooncake" / "conversation_trace.jsonl.gz") as lines:
        rows = [orjson.loads(line) for line in lines]
    return Accesses.of([r["hash_ids"] for r in rows], [r["timestamp"] / 1000 for r in rows], block_tokens=512)


def test_on_real_conversations_it_gains_more_than_any_rule(conversations):
    restart = float(conversations.times_s[len(conversations) // 2])
    past, chooser = conversations.between(until_s=restart), BlockChooser(conversations, restart, WINDOW_S)

    def hits(warm):
        found = simulate(conversations, conversations.blocks, warm=warm, restart_at_s=restart, window_s=WINDOW_S)
        return found.hit_blocks

    for budget in (5_000, 10_000):
        cold, best = hits(None), hits(oracle(conversations, restart, WINDOW_S, budget))
        rules = [hits(rule(past, budget)) - cold for rule in (by_count, by_recency, last_lru_state)]
        chosen = chooser.choose(budget)
        assert set(chosen.tolist()) <= set(past.ids.tolist())
        assert max(rules) < hits(chosen) - cold < best - cold
    scores = chooser.scores(chooser.basis(10_000))
    assert np.isfinite(scores).all()
