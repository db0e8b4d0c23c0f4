"""Heads that change with the clock, dates that pass, and values that look alike but stay."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest

from warmup_tasks.demand.prompts import head
from warmup_tasks.demand.volatile import HEAD_CHARACTERS, OPENING_CHARACTERS, HeadSighting, Stability, stabilities
from warmup_tasks.items import PromptBody, Reason

AS_OF = datetime(2026, 11, 27, 2, tzinfo=UTC)
DAY_S = 86_400
LONG = " ".join(f"rule{number}" for number in range(2000))

_words: dict[str, int] = {}


def sighting(
    text: str, *, system: bool = False, age_s: float = 7200.0, until_s: float | None = None, uses: int = 1
) -> HeadSighting:
    messages: list[dict[str, Any]] = [{"role": "user", "content": text}]
    if system:
        messages = [{"role": "system", "content": text}, {"role": "user", "content": "hello"}]
    body = PromptBody(messages=messages)
    tokens = np.asarray([_words.setdefault(word, len(_words)) for word in text.split()], dtype=np.int32)
    last = AS_OF - timedelta(seconds=age_s if until_s is None else until_s)
    first = AS_OF - timedelta(seconds=age_s)
    return HeadSighting("g", head(body, HEAD_CHARACTERS, OPENING_CHARACTERS), tokens, uses, first, last)


def judge(sightings: Sequence[HeadSighting], horizon_s: int = DAY_S, as_of: datetime = AS_OF) -> list[Stability]:
    return stabilities(sightings, as_of, horizon_s, min_uses=2)


@pytest.mark.parametrize("system", [True, False])
def test_fifty_clocks_with_changing_seconds_have_no_stable_prefix(system: bool) -> None:
    prompts = [
        sighting(
            f"Current time is 15:09:{second:02d}. Today's date is 2026-11-26. {LONG}",
            system=system,
            age_s=39_000 - second,
        )
        for second in range(50)
    ]
    found = judge(prompts)
    assert {stability.reason for stability in found} == {Reason.VOLATILE_HEAD}
    assert {stability.stable_tokens for stability in found} == {3}  # "Current time is": no whole block


def test_what_stands_before_the_clock_stays_stable() -> None:
    rules = " ".join(f"law{number}" for number in range(100))
    prompts = [
        sighting(f"{rules} Now: 10:{minute:02d}. {LONG}", system=True, age_s=9000 - minute * 60) for minute in range(9)
    ]
    assert set(judge(prompts)) == {Stability(101, Reason.VOLATILE_HEAD)}


def test_a_clock_that_many_requests_share_per_minute_is_still_a_clock() -> None:
    prompts = [
        sighting(
            f"It is 10:{minute:02d} now. {LONG}",
            system=True,
            age_s=9000 - 60 * minute,
            until_s=8941 - 60 * minute,
            uses=40,
        )
        for minute in range(9)
    ]
    assert {stability.reason for stability in judge(prompts)} == {Reason.VOLATILE_HEAD}


@pytest.mark.parametrize(
    "value", ["550e8400-e29b-41d4-a716-4466554400{:02d}", "{:02d}3f9ac0de1177bb", "2026{:02d}1", "#{}"]
)
def test_ids_and_counters_that_change_each_time_are_volatile(value: str) -> None:
    prompts = [sighting(f"Request {value.format(number)} follows. {LONG}", system=True) for number in range(12)]
    assert {stability.reason for stability in judge(prompts)} == {Reason.VOLATILE_HEAD}


def test_the_presence_of_a_time_is_no_proof() -> None:
    fixed = sighting(f"The shop opens at 09:00 and ticket 4711 is closed. {LONG}", system=True, uses=500, until_s=60)
    assert judge([fixed]) == [Stability(len(fixed.token_ids), None)]


def test_opening_hours_of_several_tenants_do_not_run_with_the_clock() -> None:
    shops = [
        sighting(f"The shop opens at {hour:02d}:00 {LONG}", system=True, age_s=80_000, until_s=600 + hour, uses=300)
        for hour in range(7, 11)
    ]
    assert {stability.reason for stability in judge(shops)} == {None}


def test_one_lasting_number_among_many_passing_ones_stays() -> None:
    passing = [sighting(f"Status of order {number}?") for number in range(100, 160)]
    lasting = sighting("Status of order 99?", age_s=90_000, until_s=100, uses=30)
    found = judge([*passing, lasting])
    assert found[-1].reason is None
    assert {stability.reason for stability in found[:-1]} == {Reason.VOLATILE_HEAD}


@pytest.mark.parametrize(
    "text",
    [
        "2026-11-26",
        "26.11.2026",
        "11/26/2026",
        "November 26, 2026",
        "Nov 26 2026",
        "26 November 2026",
        "26th of November 2026",
    ],
)
def test_yesterday_s_date_is_dropped(text: str) -> None:
    assert judge([sighting(f"Today's date is {text}. {LONG}", system=True, uses=90)]) == [
        Stability(0, Reason.STALE_DATE)
    ]


def test_a_date_that_still_holds_in_the_horizon_stays() -> None:
    prompt = sighting(f"Today's date is 2026-11-27. {LONG}", system=True, uses=90, age_s=3600)
    assert judge([prompt]) == [Stability(len(prompt.token_ids), None)]
    late = datetime(2026, 11, 26, 23, tzinfo=UTC)
    yesterday = sighting(f"Today's date is 2026-11-26. {LONG}", system=True, uses=90)
    assert judge([yesterday], as_of=late, horizon_s=7200)[0].reason is None
    assert judge([yesterday], as_of=AS_OF, horizon_s=7200)[0].reason is Reason.STALE_DATE


def test_what_stands_before_a_passing_date_stays_stable() -> None:
    rules = " ".join(f"law{number}" for number in range(100))
    days = [
        sighting(f"{rules} Date: 2026-11-{day} {LONG}", system=True, age_s=(27 - day) * DAY_S, uses=50)
        for day in (25, 26, 27)
    ]
    found = judge(days)
    assert found[:2] == [Stability(101, Reason.STALE_DATE)] * 2
    assert found[2].reason is None


def test_a_date_that_does_not_move_with_the_requests_is_just_a_date() -> None:
    old = sighting(f"Policy of 2025-01-31. {LONG}", system=True, uses=90)
    kept = sighting(f"Since 2026-11-25 we ship. {LONG}", system=True, uses=90, age_s=2 * DAY_S, until_s=-3600 + 7200)
    assert [stability.reason for stability in judge([old])] == [None]
    far = kept._replace(last_seen=AS_OF + timedelta(days=3))
    assert [stability.reason for stability in judge([far])] == [None]


def test_numbers_deep_in_a_question_are_no_head() -> None:
    opening = "word " * 60
    prompts = [sighting(f"{opening} order {number}") for number in range(50)]
    assert {stability.reason for stability in judge(prompts)} == {None}


def test_groups_do_not_mix() -> None:
    prompts = [sighting(f"Now 10:0{minute}. {LONG}", system=True)._replace(group=f"g{minute}") for minute in range(6)]
    assert {stability.reason for stability in judge(prompts)} == {None}
