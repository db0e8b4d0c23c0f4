"""Why an item was chosen or refused, from the tables of a run; costs are checked by hand."""

import pytest

from warmup_tasks.errors import ConfigurationError
from warmup_tasks.items import ItemKind, Reason, ReplicaState
from warmup_tasks.lake.schemas import to_table
from warmup_tasks.planning.explain import explain

PREFILL_MS = 0.5


@pytest.fixture
def night(demand, plan, lake, run, replicas):
    """A shared head of 10 blocks, two hot branches of 5, a cold one that does not fit."""
    head = demand.node(10, 90.0)
    demand.node(5, 60.0, head)
    demand.node(5, 30.0, head)
    demand.node(5000, 3.0)
    lake.publish("replicas", run.run_id, {"replicas": to_table(replicas, ReplicaState)})
    return [row for row in plan(demand)[0] if row.kind is ItemKind.KV_PREFIX and row.replica in (None, "large-0")]


def test_leaving_an_item_out_costs_its_own_tokens_only(night, lake, run):
    for row in (row for row in night if row.is_chosen):
        told = next(one for one in explain(lake, run.run_id, row.item_id) if one.row.replica == "large-0")
        branch, head = row.expected_uses * 80 * PREFILL_MS, 90 / 3 * 160 * PREFILL_MS
        expected = branch + (head if row.unique_tokens == 240 else 0.0)
        assert told.lost_without_ms == pytest.approx(expected)
        assert told.weakest_chosen_ms <= told.gain_per_token_ms
        assert any("more prefill" in line for line in told.lines())


def test_a_refused_item_says_why_and_what_beat_it(night, lake, run):
    refused = next(row for row in night if row.reason == Reason.OVER_CAPACITY)
    told = explain(lake, run.run_id, refused.item_id[:20])[0]
    assert told.lost_without_ms is None
    assert told.gain_per_token_ms < told.weakest_chosen_ms
    assert Reason.OVER_CAPACITY in told.lines()[0]


def test_what_is_not_there_is_named(night, lake, run):
    with pytest.raises(ConfigurationError, match="no plan of run"):
        explain(lake, "other", night[0].item_id)
    with pytest.raises(ConfigurationError, match="no item begins with 'zz'"):
        explain(lake, run.run_id, "zz")
    with pytest.raises(ConfigurationError, match="no item begins with ''"):
        explain(lake, run.run_id, "")
