"""Heads that will not be asked for again: clock times, ids and counters that change, and dates that have passed.

A number in a head is no proof. A head is volatile when prompts agree in everything up to a masked value and the value
itself keeps changing; a date counts as *today's date* when it moves with the requests' own days. Then only what stands
before the value is stable. Works on text that never leaves this module; results are token counts and reasons.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import xxhash

from warmup_tasks.demand.prompts import Head
from warmup_tasks.items import Reason

HEAD_CHARACTERS = 8000
OPENING_CHARACTERS = 200
_MAX_VALUES = 512
_MIN_VARIANTS = 3
_DISJOINT_SHARE = 0.8
_A_WHILE = timedelta(hours=1)
_LASTING_KINDS = ("id", "number")

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTH = f"(?:{'|'.join(_MONTHS)})[a-z]*"
_VALUE = re.compile(
    rf"""
    (?P<id>\b[0-9a-f]{{8}}-[0-9a-f]{{4}}-[0-9a-f]{{4}}-[0-9a-f]{{4}}-[0-9a-f]{{12}}\b
        |\b(?=[0-9a-f]*\d)[0-9a-f]{{12,}}\b)
    |(?P<date>(?<!\d)\d{{4}}[-/.]\d{{1,2}}[-/.]\d{{1,2}}(?!\d)
        |(?<!\d)\d{{1,2}}[-/.]\d{{1,2}}[-/.]\d{{4}}(?!\d)
        |\b{_MONTH}\.?\s\d{{1,2}}(?:st|nd|rd|th)?,?\s\d{{4}}\b
        |\b\d{{1,2}}(?:st|nd|rd|th)?\s(?:of\s)?{_MONTH}\.?,?\s\d{{4}}\b)
    |(?P<seconds>(?<![\d:])\d{{1,2}}:\d{{2}}:\d{{2}}(?:[.,]\d+)?(?:\s?[ap]\.?m\b)?(?!\d))
    |(?P<clock>(?<![\d:])\d{{1,2}}:\d{{2}}(?:\s?[ap]\.?m\b)?(?![\d:]))
    |(?P<number>\d+)
    """,
    re.IGNORECASE | re.VERBOSE,
)


_Spot = tuple[str, int]


class HeadSighting(NamedTuple):
    """One distinct prompt's head, with its use and its tokens. ``group`` keeps models, adapters and salts apart."""

    group: str
    head: Head
    token_ids: npt.NDArray[np.int32]
    uses: int
    first_seen: datetime
    last_seen: datetime


class Stability(NamedTuple):
    """How many tokens of a prompt will be asked for again, and why not all of them (None: all)."""

    stable_tokens: int
    reason: Reason | None


class _Variant:
    __slots__ = ("first_seen", "last_seen", "uses")

    def __init__(self, sighting: HeadSighting) -> None:
        self.uses, self.first_seen, self.last_seen = sighting.uses, sighting.first_seen, sighting.last_seen

    def add(self, sighting: HeadSighting) -> None:
        self.uses += sighting.uses
        self.first_seen = min(self.first_seen, sighting.first_seen)
        self.last_seen = max(self.last_seen, sighting.last_seen)

    def comes_back(self, min_uses: int) -> bool:
        """Say whether this very value was asked for again after a while, as an order number may be."""
        return self.uses >= min_uses and self.last_seen - self.first_seen >= _A_WHILE


@dataclass(slots=True)
class _Place:
    """One position in a masked head: the values that stood there, and the prompts' tokens."""

    kind: str
    variants: dict[str, _Variant] = field(default_factory=dict)
    token_ids: list[npt.NDArray[np.int32]] = field(default_factory=list)

    def add(self, value: str, sighting: HeadSighting) -> None:
        """Note that a head with this value was seen."""
        self.token_ids.append(sighting.token_ids)
        if value in self.variants:
            self.variants[value].add(sighting)
        else:
            self.variants[value] = _Variant(sighting)

    def common_tokens(self) -> int:
        """Return how many tokens all prompts begin with here; 0 where no second value tells where the value begins."""
        if len(self.variants) < 2:
            return 0
        first = self.token_ids[0]
        length = len(first)
        for other in self.token_ids[1:]:
            length = min(length, len(other))
            differs = np.flatnonzero(first[:length] != other[:length])
            length = int(differs[0]) if len(differs) else length
        return length


def stabilities(sightings: Sequence[HeadSighting], as_of: datetime, horizon_s: int, min_uses: int) -> list[Stability]:
    """Return how stable each prompt is.

    Args:
        sightings: the distinct prompts of the lookback.
        as_of: start of the horizon (UTC).
        horizon_s: its length; a today's date stays if it is one of the horizon's days.
        min_uses: values that come back less often than this on average are volatile.
    """
    by_head: dict[tuple[str, str], list[int]] = {}
    for index, sighting in enumerate(sightings):
        text = sighting.head.text[: sighting.head.head_characters]
        by_head.setdefault((sighting.group, text), []).append(index)
    places: dict[_Spot, _Place] = {}
    spots: list[list[tuple[_Spot, str]]] = []
    for (group, text), indices in by_head.items():
        merged = _merge([sightings[index] for index in indices])
        spots.append([])
        for kind, key, value in _values(text):
            place = places.setdefault((group, key), _Place(kind))
            place.add(value, merged)
            spots[-1].append(((group, key), value))
    days = _days(as_of, horizon_s)
    volatile = {spot: _is_volatile(place, min_uses) for spot, place in places.items()}
    common: dict[_Spot, int] = {}
    result = [Stability(len(sighting.token_ids), None) for sighting in sightings]
    for indices, found in zip(by_head.values(), spots, strict=True):
        for spot, value in found:
            place = places[spot]
            comes_back = place.kind in _LASTING_KINDS and place.variants[value].comes_back(min_uses)
            reason = Reason.VOLATILE_HEAD if volatile[spot] and not comes_back else _stale(place, value, days)
            if reason is not None:
                if spot not in common:
                    common[spot] = place.common_tokens()
                for index in indices:
                    result[index] = Stability(common[spot], reason)
                break
    return result


def _merge(sightings: Sequence[HeadSighting]) -> HeadSighting:
    """Return one sighting for prompts with the same head."""
    return sightings[0]._replace(
        uses=sum(sighting.uses for sighting in sightings),
        first_seen=min(sighting.first_seen for sighting in sightings),
        last_seen=max(sighting.last_seen for sighting in sightings),
    )


def _values(text: str) -> Iterator[tuple[str, int, str]]:
    """Yield (kind, hash of the masked text up to and including the value, value) for the values in a head."""
    running, position = xxhash.xxh3_64(), 0
    for count, match in enumerate(_VALUE.finditer(text)):
        if count == _MAX_VALUES:
            return
        kind = match.lastgroup or "number"
        running.update(text[position : match.start()].encode("utf-8", "surrogatepass") + b"\0" + kind.encode())
        position = match.end()
        yield kind, running.intdigest(), match.group()


def _is_volatile(place: _Place, min_uses: int) -> bool:
    variants = list(place.variants.values())
    if place.kind == "seconds":  # nothing but a running clock shows different seconds
        return len(variants) > 1
    if place.kind == "date" or len(variants) < _MIN_VARIANTS:
        return False
    if sum(variant.uses for variant in variants) < min_uses * len(variants):
        return True
    if place.kind != "clock":
        return False
    variants.sort(key=lambda variant: (variant.first_seen, variant.last_seen))
    disjoint = sum(a.last_seen <= b.first_seen for a, b in pairwise(variants))
    return disjoint >= _DISJOINT_SHARE * (len(variants) - 1)


def _stale(place: _Place, value: str, days: set[date]) -> Reason | None:
    if place.kind != "date":
        return None
    variant, one_day = place.variants[value], timedelta(days=1)
    written = [day for day in _dates(value) if _follows(day, variant, one_day)]
    return Reason.STALE_DATE if written and not days.intersection(written) else None


def _follows(day: date, variant: _Variant, slack: timedelta) -> bool:
    return day - slack <= variant.first_seen.date() and variant.last_seen.date() <= day + slack


def _dates(text: str) -> list[date]:
    """Return the dates that a text may mean; 3/4/2026 may be of March and of April."""
    lowered = text.lower()
    numbers = [int(number) for number in re.findall(r"\d+", lowered)]
    month = next((i + 1 for i, name in enumerate(_MONTHS) if name in lowered), None)
    if month is not None:
        day, year = numbers[0], numbers[-1]
        candidates = [(year, month, day)]
    elif numbers[0] > 31:
        candidates = [(numbers[0], numbers[1], numbers[2])]
    else:
        candidates = [(numbers[2], numbers[0], numbers[1]), (numbers[2], numbers[1], numbers[0])]
    found = []
    for year, month_, day in candidates:
        try:
            found.append(date(year, month_, day))
        except ValueError:
            continue
    return found


def _days(as_of: datetime, horizon_s: int) -> set[date]:
    last = as_of + timedelta(seconds=horizon_s) - timedelta(microseconds=1)
    return {as_of.date() + timedelta(days=i) for i in range((last.date() - as_of.date()).days + 1)}
