"""Why an item was chosen or refused, from the tables of a run; costs are checked by hand."""

import json

import pytest
from typer.testing import CliRunner

from warmup_tasks.cli import app
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
        assert told.lost_without_ms == pytest.approx(row.expected_uses * 80 * PREFILL_MS), "the other holds the head"
        assert told.weakest_chosen_ms <= told.gain_per_token_ms
        assert any("more prefill" in line for line in told.lines())


def test_an_item_that_is_alone_takes_its_head_with_it(demand, plan, lake, run, replicas):
    head = demand.node(10, 90.0)
    demand.node(5, 60.0, head)
    lake.publish("replicas", run.run_id, {"replicas": to_table(replicas, ReplicaState)})
    row = next(row for row in plan(demand)[0] if row.is_chosen and row.prompt_tokens > 200)
    told = next(one for one in explain(lake, run.run_id, row.item_id) if one.row.replica == row.replica)
    share = row.expected_uses / 60.0
    assert told.lost_without_ms == pytest.approx(share * (90 * 160 + 60 * 80) * PREFILL_MS)


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


def test_the_command_needs_the_lake_alone(night, lake, monkeypatch):
    for name in ("WARMUP_LAKE", "WARMUP_REDIS_URL", "WARMUP_FLEET"):
        monkeypatch.delenv(name, raising=False)
    row = next(row for row in night if row.is_chosen)
    told = CliRunner().invoke(app, ["explain", row.item_id, "--lake", lake.uri, "--json"])
    assert told.exit_code == 0, told.output
    assert {one["row"]["item_id"] for one in json.loads(told.stdout)} == {row.item_id}
    without = CliRunner().invoke(app, ["explain", row.item_id])
    assert (without.exit_code, "--lake" in without.stderr) == (1, True)
