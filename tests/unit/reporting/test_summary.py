"""The summary's figures against counts made by hand from the same rows."""

import pytest

from warmup_tasks.items import Arm, GainBasis, ItemKind, Outcome, Reason, Residency
from warmup_tasks.lake.store import Lake
from warmup_tasks.reporting.advice import ADVICE, HELD_BACK, NO_EVIDENCE, NO_RECEIPT, NOT_PUBLISHED, advice, plain
from warmup_tasks.reporting.collect import collect
from warmup_tasks.reporting.model import RunSummary
from warmup_tasks.reporting.summary import summarise


def test_counts_follow_every_planned_item_to_its_end(night):
    items = summarise(night.lake, night.run).items
    chosen = [row for row in night.plan if row.is_chosen]
    assert items.planned == len(chosen)
    assert items.held_out == sum(row.arm is Arm.HOLDOUT for row in night.plan) > 0
    assert items.refused == len(night.plan) - items.planned - items.held_out + 41
    assert items.warmed == sum(row.outcome is Outcome.WARMED for row in night.receipts)
    assert items.ready == len(night.marks)
    assert items.skipped == sum(row.outcome is Outcome.SKIPPED for row in night.receipts) > 0
    failed = sum(row.outcome is Outcome.FAILED for row in night.receipts)
    missed = sum(row.residency is Residency.MISS for row in night.evidence)
    assert items.rejected == failed + missed > failed > 0
    assert items.unverified == sum(row.residency is Residency.UNVERIFIED for row in night.evidence) > 0
    assert items.validated == items.warmed - items.unverified
    assert items.unaccounted == 0
    assert items.planned == items.ready + items.skipped + items.rejected + items.unverified


def test_kinds_and_replicas_add_up(night):
    summary = summarise(night.lake, night.run)
    for field in ("planned", "warmed", "ready", "rejected"):
        by_kind = sum(getattr(counts, field) for counts in summary.items.by_kind.values())
        assert by_kind == getattr(summary.items, field)
    per_replica = sum(replica.planned for replica in summary.replicas)
    in_store = sum(row.is_chosen and row.replica is None for row in night.plan)
    assert per_replica + in_store == summary.items.planned
    large = summary.replicas[0]
    assert (large.name, large.profile, large.epoch) == ("large-0", "large", "large-0-e1")
    assert large.ready_share == large.ready / large.planned
    tokens = {(row.item_id, row.replica): row.unique_tokens for row in night.plan}
    prefixes = [m for m in night.marks if m.replica == "large-0" and m.kind is ItemKind.KV_PREFIX]
    assert large.ready_tokens == sum(tokens[mark.item_id, mark.replica] for mark in prefixes)
    assert large.budget_tokens == 2048 * 16
    assert large.use_share == pytest.approx(large.ready_tokens / 65_536)


def test_ttft_compares_the_same_sampled_items(night):
    ttft = summarise(night.lake, night.run).ttft_ms
    pairs = [(row.ttft_cold_ms, row.ttft_warm_ms) for row in night.evidence if row.is_sampled]
    assert ttft.cold.n == ttft.warm.n == len(pairs) >= 50
    cold = sorted(cold for cold, _ in pairs)
    middle = len(cold) // 2
    median = cold[middle] if len(cold) % 2 else (cold[middle - 1] + cold[middle]) / 2
    assert ttft.cold.p50 == pytest.approx(median)
    assert ttft.warm.p50 < ttft.cold.p50


def test_hits_that_were_not_told_do_not_count_as_misses(night):
    ratio = summarise(night.lake, night.run).block_hit_ratio
    data = collect(night.lake, night.run)
    cold = {row["request_id"]: row["hit_blocks"] for row in data.replay_cold.to_pylist()}
    warm = {row["request_id"]: row["hit_blocks"] for row in data.replay_warm.to_pylist()}
    both = [name for name in cold if cold[name] is not None and warm[name] is not None]
    assert ratio.n == len(both) == 240
    assert ratio.cold == pytest.approx(sum(cold[name] for name in both) / (20 * 240))
    assert ratio.warm == pytest.approx(sum(warm[name] for name in both) / (20 * 240))
    assert (ratio.failed_cold, ratio.failed_warm) == (30, 0)


def test_one_state_alone_is_measured_on_its_own(lake, night):
    from warmup_tasks.items import ReplayRow
    from warmup_tasks.lake import schemas

    alone = Lake(lake.uri + "-alone")
    fields = {"prompt_tokens": 160, "cached_tokens": 80, "ttft_ms": 9.0, "error": None, "replica": "large-0"}
    row = ReplayRow(
        run_id=night.run.run_id, profile="large", arm="warm", request_id="r1", full_blocks=10, hit_blocks=5, **fields
    )
    alone.publish("replay", f"{night.run.run_id}.large.warm", {"replay": schemas.to_table([row], ReplayRow)})
    ratio = summarise(alone, night.run).block_hit_ratio
    assert (ratio.cold, ratio.warm, ratio.n, ratio.failed_cold) == (None, 0.5, 1, None)


def test_prefill_counts_whole_prompts_where_the_engine_did_not_say(night):
    prefill = summarise(night.lake, night.run).prefill_tokens
    warmed = [row for row in night.receipts if row.outcome is Outcome.WARMED]
    assert any(row.computed_tokens is None for row in warmed)
    told = (row.prompt_tokens if row.computed_tokens is None else row.computed_tokens for row in warmed)
    assert prefill.warming == sum(told)
    twins = sum(twin.prompt_tokens for twin in night.twins)
    assert prefill.validation == twins + 2 * 256 + 2 * (300 + 4000)
    assert 0 < prefill.unique <= prefill.warming


def test_gains_are_those_that_the_strata_were_judged_by(night):
    gains = {gain.stratum: gain for gain in summarise(night.lake, night.run).gains}
    large = gains["large tenant-0 1024+"]
    assert (large.gain_low_ms, large.gain_ms, large.gain_high_ms, large.pairs) == (21.5, 40.0, 63.0, 4)
    rows = [row for row in night.evidence if row.stratum == large.stratum and row.gain_basis is GainBasis.INFERRED]
    assert large.inferred == len(rows) > 0
    assert gains["small tenant-2 1024+"].reason == Reason.SLOWER_THAN_COLD


def test_a_run_that_was_judged_and_not_published_has_nothing_ready(night):
    night.judge(is_published=False)
    summary = summarise(night.lake, night.run)
    assert summary.items.ready == 0
    assert summary.publication.is_published is False
    unpublished = [reason for reason in summary.reasons if reason.reason == NOT_PUBLISHED]
    assert sum(reason.n_items for reason in unpublished) == len(night.marks)


def test_the_last_reason_counts(night):
    """An item that its own probe passed may fall with its stratum when the run is judged."""
    mark = next(mark for mark in night.marks if mark.kind is ItemKind.KV_PREFIX)
    fallen = next(row for row in night.evidence if (row.item_id, row.replica) == (mark.item_id, mark.replica))
    night.marks.remove(mark)
    night.evidence.append(fallen.model_copy(update={"is_ready": False, "reason": Reason.STRATUM_FAILED}))
    night.judge()
    reasons = {reason.reason: reason for reason in summarise(night.lake, night.run).reasons}
    assert (reasons[Reason.STRATUM_FAILED].n_items, reasons[Reason.STRATUM_FAILED].step) == (1, "validation")


def test_holdout_is_counted_at_roots(night):
    holdout = summarise(night.lake, night.run).holdout
    rows = [row for row in night.plan if row.arm is Arm.HOLDOUT]
    assert holdout.items_held_out == len(rows)
    assert holdout.roots_held_out == len({row.subtree_root for row in rows}) < len(rows)


def test_reasons_are_counted_without_their_details(night):
    reasons = {(row.reason, row.kind): row for row in summarise(night.lake, night.run).reasons}
    skipped = reasons[Reason.DEPENDENCY_FAILED, "kv_prefix"]
    kv_skipped = [r for r in night.receipts if r.outcome is Outcome.SKIPPED and r.kind is ItemKind.KV_PREFIX]
    assert (skipped.n_items, skipped.step) == (len(kv_skipped), "warming")
    assert skipped.advice == ADVICE[Reason.DEPENDENCY_FAILED]
    assert reasons[Reason.HOLDOUT, "kv_prefix"].step == "planning"
    assert reasons[Reason.VOLATILE_HEAD, "kv_prefix"].n_items == 41
    assert reasons[Reason.RESIDENCY_MISS, "kv_prefix"].step == "validation"


def test_every_reason_has_advice():
    assert set(ADVICE) == {*Reason, NOT_PUBLISHED, NO_EVIDENCE, NO_RECEIPT, HELD_BACK}
    assert plain(f"{Reason.NOT_WARMABLE}: 15 of 16 tokens") == Reason.NOT_WARMABLE
    assert advice("something new") not in ADVICE.values()


def test_no_reason_is_the_beginning_of_another():
    for reason in Reason:
        assert plain(reason) == reason


def test_an_empty_lake_gives_null_and_never_zero(lake: Lake, night):
    empty = summarise(Lake(lake.uri + "-empty"), night.run)
    assert empty.requests_read is None
    assert empty.items.planned is None
    assert empty.items.ready is None
    assert (empty.ttft_ms.cold.p50, empty.ttft_ms.cold.n) == (None, 0)
    assert (empty.block_hit_ratio.cold, empty.block_hit_ratio.warm) == (None, None)
    assert (empty.prefill_tokens.warming, empty.prefill_tokens.validation) == (None, None)
    assert empty.engine.name is None
    assert empty.stages_s is None
    assert empty.holdout is None


def test_a_run_that_stopped_before_publication_has_no_ready_count(lake: Lake, night):
    from warmup_tasks.items import PlanRow, Receipt
    from warmup_tasks.lake import schemas

    half = Lake(lake.uri + "-half")
    half.publish("plan", night.run.run_id, {"plan": schemas.to_table(night.plan, PlanRow)})
    receipts = {"receipts": schemas.to_table(night.receipts, Receipt)}
    half.publish("receipts", f"{night.run.run_id}.large.w3.0", receipts)
    items = summarise(half, night.run).items
    assert items.warmed == sum(row.outcome is Outcome.WARMED for row in night.receipts)
    assert (items.validated, items.ready, items.unverified) == (None, None, None)


def test_another_runs_partitions_are_left_alone(night):
    other = type(night)(night.lake, seed=8).publish()
    first = summarise(night.lake, night.run)
    assert first.items.planned == sum(row.is_chosen for row in night.plan)
    assert other.run.run_id != night.run.run_id


def test_the_summary_is_json_with_the_promised_names(night):
    summary = summarise(night.lake, night.run, stages_s={"extract": 1.5}, task_count=12)
    again = RunSummary.model_validate_json(summary.model_dump_json())
    assert again == summary
    named = summary.model_dump(mode="json")
    assert {"planned", "warmed", "validated", "ready", "skipped", "rejected", "unverified", "by_kind"} <= set(
        named["items"]
    )
    for part in ("cold", "warm"):
        assert set(named["ttft_ms"][part]) == {"p50", "p95", "n"}
        assert part in named["block_hit_ratio"]
    assert set(named["prefill_tokens"]) == {"warming", "validation", "unique"}
    assert named["engine"] == {"name": "double", "version": "0.1.0"}
    assert (named["requests_read"], named["requests_usable"], named["rows_quarantined"]) == (5340, 5321, 4)
    assert named["task_count"] == 12
    assert named["quarantined_by_reason"] == {"not JSON": 3, "no time": 1}
    assert named["files"] == ["day-1.jsonl", "day-2.jsonl"]
