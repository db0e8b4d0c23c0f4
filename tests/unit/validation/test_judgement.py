"""The pure judgements: item by item, stratum by stratum, how long a mark lives, and the suite over the whole."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from warmup_tasks.items import Evidence, Outcome, Reason, Receipt, Residency
from warmup_tasks.validation.intervals import gain_of
from warmup_tasks.validation.lives import mark_end
from warmup_tasks.validation.strata import judge_strata
from warmup_tasks.validation.suite import check_evidence
from warmup_tasks.validation.verdicts import Facts, reason_against

NOW = datetime(2026, 11, 27, 3, tzinfo=UTC)


def receipt(**more: Any) -> Receipt:
    values = {
        "run_id": "r",
        "as_of": NOW,
        "item_id": "i",
        "kind": "kv_prefix",
        "profile": "large",
        "replica": "a",
        "tenant": None,
        "model": "m",
        "adapter": None,
        "identity_digest": "d",
        "wave": 3,
        "order": 0,
        "shard": "s",
        "outcome": Outcome.WARMED,
        "reason": "",
        "replica_epoch": "e1",
        "started_at": NOW,
        "finished_at": NOW,
        "prompt_tokens": 33,
        "computed_tokens": 33,
        "ttft_ms": 1.0,
        "arm": "warm",
        "assignment_probability": 1.0,
        "expected_gain_ms": 1.0,
    }
    return Receipt(**{**values, **more})


def evidence(**more: Any) -> Evidence:
    values = {
        "run_id": "r",
        "item_id": "i",
        "kind": "kv_prefix",
        "profile": "large",
        "replica": "a",
        "tenant": None,
        "adapter": None,
        "stratum": "s",
        "replica_epoch": "e1",
        "is_identity_ok": True,
        "residency": "hit",
        "evidence_kind": "cached_tokens",
        "cached_tokens": 32,
        "expected_cached_tokens": 32,
        "is_sampled": True,
        "ttft_cold_ms": 10.0,
        "ttft_warm_ms": 5.0,
        "is_answer_equal": True,
        "is_control_missed": True,
        "gain_ms": 5.0,
        "gain_basis": "measured",
        "is_ready": True,
        "reason": "",
    }
    return Evidence(**{**values, **more})


def facts(**more: Any) -> Facts:
    values = {
        "receipt": receipt(),
        "is_on_replica": True,
        "is_identity_ok": True,
        "epoch_before": "e1",
        "epoch_after": "e1",
        "residency": Residency.HIT,
    }
    return Facts(**{**values, **more})


@pytest.mark.parametrize(
    ("known", "reason"),
    [
        ({}, ""),
        ({"receipt": None}, Reason.ENGINE_UNAVAILABLE),
        ({"receipt": receipt(outcome="skipped", reason=Reason.DEPENDENCY_FAILED)}, Reason.DEPENDENCY_FAILED),
        ({"is_identity_ok": False}, Reason.IDENTITY_CONTRADICTED),
        ({"epoch_before": None}, Reason.EPOCH_UNKNOWN),
        ({"epoch_after": None}, Reason.EPOCH_UNKNOWN),
        ({"receipt": receipt(replica_epoch=None)}, Reason.EPOCH_UNKNOWN),
        ({"epoch_after": "e2"}, Reason.EPOCH_CHANGED),
        ({"receipt": receipt(replica_epoch="e0")}, Reason.EPOCH_CHANGED),
        ({"residency": Residency.MISS}, Reason.RESIDENCY_MISS),
        ({"residency": Residency.UNVERIFIED}, Reason.RESIDENCY_UNVERIFIED),
        ({"residency": Residency.UNVERIFIED, "refusal": Reason.TOO_LONG}, Reason.TOO_LONG),
        ({"are_salts_kept": False}, Reason.CONTROL_HIT),
        ({"is_answer_equal": False}, Reason.ANSWER_DIFFERS),
        ({"is_on_replica": False, "epoch_before": None, "epoch_after": None}, ""),
        ({"is_identity_ok": False, "residency": Residency.MISS}, Reason.IDENTITY_CONTRADICTED),
    ],
)
def test_what_speaks_against_an_item(known: dict[str, Any], reason: str) -> None:
    assert reason_against(facts(**known)) == reason


def test_the_gain_is_the_median_with_an_interval_around_it() -> None:
    gain = gain_of([(10.0 + n, 5.0) for n in range(21)], seed=1)

    assert gain is not None
    assert gain.median_ms == 15.0
    assert (gain.low_ms or 0) < 15.0 < (gain.high_ms or 0)
    assert not gain.is_slower
    assert gain_of([(10.0 + n, 5.0) for n in range(21)], seed=1) == gain


def test_one_stall_does_not_turn_a_gain_over() -> None:
    gain = gain_of([*[(10.0, 5.0)] * 20, (10.0, 5000.0)], seed=1)

    assert gain is not None
    assert not gain.is_slower


@pytest.mark.parametrize(("warm", "is_slower"), [(9.0, False), (11.0, False), (12.6, True)])
def test_a_single_pair_speaks_only_when_it_is_clear(warm: float, is_slower: bool) -> None:
    gain = gain_of([(10.0, warm)], seed=1)

    assert gain is not None
    assert gain.is_slower is is_slower
    assert gain.low_ms is None


def test_no_pair_is_no_gain() -> None:
    assert gain_of([], seed=1) is None


def test_a_stratum_that_is_slower_warm_fails_and_its_neighbour_does_not() -> None:
    rows = [evidence(item_id=str(n), ttft_warm_ms=11.0 + n) for n in range(5)]
    rows += [evidence(item_id=f"x{n}", stratum="t") for n in range(5)]

    found = judge_strata(rows, max_failure_share=0.5, seed=1)

    assert {name: result.reason for name, result in found.items()} == {"s": Reason.SLOWER_THAN_COLD, "t": ""}


@pytest.mark.parametrize(("different", "reason"), [(2, ""), (3, Reason.STRATUM_FAILED)])
def test_a_stratum_fails_when_most_of_its_answers_differ(different: int, reason: str) -> None:
    rows = [evidence(item_id=str(n), is_answer_equal=n >= different) for n in range(4)]

    assert judge_strata(rows, max_failure_share=0.5, seed=1)["s"].reason == reason


@pytest.mark.parametrize(
    ("kind", "half_turnover_s", "life"),
    [
        ("kv_prefix", None, timedelta(hours=8)),
        ("kv_prefix", 90.0, timedelta(seconds=90)),
        ("embedding", None, timedelta(hours=8)),
        ("adapter", 10**9, timedelta(hours=8)),
    ],
)
def test_a_mark_lives_as_short_as_its_shortest_reason(
    kind: str, half_turnover_s: float | None, life: timedelta
) -> None:
    end = mark_end(
        evidence(kind=kind),
        receipt(),
        NOW,
        mark_life_s=8 * 3600,
        half_turnover_s={"a": half_turnover_s},
        looked_from={},
    )

    assert end - NOW == life


def test_a_mark_does_not_outlive_the_value_that_was_written_before() -> None:
    written = receipt(started_at=NOW - timedelta(hours=11))

    end = mark_end(
        evidence(kind="response", replica=None), written, NOW, mark_life_s=10**6, half_turnover_s={}, looked_from={}
    )

    assert end - NOW == timedelta(hours=1)


def test_the_turnover_counts_from_the_looks_and_not_from_the_judgement() -> None:
    looked_from = NOW - timedelta(minutes=5)
    end = mark_end(
        evidence(), receipt(), NOW, mark_life_s=10**6, half_turnover_s={"a": 600}, looked_from={"a": looked_from}
    )
    assert end == looked_from + timedelta(minutes=10)


class TestSuite:
    def test_good_evidence_keeps_it_and_two_validations_do_not_meet(self) -> None:
        assert check_evidence([evidence()], 1).is_met
        assert check_evidence([evidence()], 1).is_met

    @pytest.mark.parametrize(
        ("rows", "planned", "broken"),
        [
            ([], 0, "there is evidence at all"),
            ([evidence()], 2, "every planned item has evidence"),
            ([evidence(ttft_cold_ms=None)], 1, "the cold arm has rows"),
            ([evidence(ttft_warm_ms=None)], 1, "the warm arm has rows"),
            ([evidence(is_control_missed=None)], 1, "the control arm has rows"),
            ([evidence(), evidence()], 2, "one row an item, replica and arm"),
            ([evidence(residency="miss")], 1, "what is called ready was seen resident"),
            ([evidence(is_identity_ok=False)], 1, "what is called ready has the right identity"),
            ([evidence(cached_tokens=16)], 1, "what is called ready hit all its blocks"),
            ([evidence(ttft_cold_ms=0.0)], 1, "a time to first token is positive"),
        ],
    )
    def test_what_breaks_it_is_named(self, rows: list[Evidence], planned: int, broken: str) -> None:
        result = check_evidence(rows, planned)

        assert not result.is_met
        assert broken in result.broken

    def test_values_in_the_store_need_no_arms(self) -> None:
        row = evidence(
            kind="embedding",
            replica=None,
            is_sampled=False,
            ttft_cold_ms=None,
            ttft_warm_ms=None,
            is_control_missed=None,
            cached_tokens=None,
            expected_cached_tokens=0,
            evidence_kind="stored_value",
            gain_basis="none",
            gain_ms=None,
        )

        assert check_evidence([row], 1).is_met
