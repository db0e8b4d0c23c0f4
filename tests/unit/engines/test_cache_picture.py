"""The picture of a cache by its events: it may miss what is there, and never shows what is not."""

import pytest

from warmup_tasks.engines.base import KvEvent
from warmup_tasks.engines.cache_picture import CachePicture

SIZE = 4
PROMPT = list(range(12))


def stored(
    names: list[int], tokens: list[int], parent: int | None = None, *, head: tuple[str, ...] = (), **more
) -> KvEvent:
    extra = tuple(head if number == 0 and parent is None else head[:0] for number in range(len(names)))
    return KvEvent("stored", tuple(names), tuple(tokens), parent, **{"extra_keys": extra, **more})


def picture(*events: KvEvent, is_current: bool = True) -> CachePicture:
    made = CachePicture()
    for event in (*events, *([KvEvent("current")] if is_current else [])):
        made.take(event)
    return made


def blocks(of: CachePicture, tokens: list[int] = PROMPT, adapter: str | None = None, salt: str | None = None) -> int:
    return of.resident_blocks(tokens, SIZE, adapter=adapter, cache_salt=salt)


def test_leading_blocks_are_counted_however_they_came() -> None:
    at_once = picture(stored([1, 2, 3], PROMPT))
    in_parts = picture(stored([1], PROMPT[:4]), stored([2, 3], PROMPT[4:], parent=1))
    assert blocks(at_once) == blocks(in_parts) == 3
    assert blocks(at_once, [*PROMPT, 7]) == 3
    assert blocks(at_once, [*PROMPT[:8], 9, 9, 9, 9]) == 2
    assert blocks(at_once, PROMPT[:3]) == 0


def test_what_is_removed_or_cleared_is_gone_with_what_hangs_on_it() -> None:
    whole = stored([1, 2, 3], PROMPT)
    assert blocks(picture(whole, KvEvent("removed", (2,)))) == 1
    assert blocks(picture(whole, KvEvent("removed", (2,)), stored([2], PROMPT[4:8], parent=1))) == 3
    assert blocks(picture(whole, KvEvent("cleared"))) == 0
    assert blocks(picture(whole, stored([1], PROMPT[:4]), KvEvent("removed", (1,)))) == 0, "one of two equal blocks"


def test_salts_and_adapters_are_told_apart() -> None:
    salted = picture(stored([1, 2, 3], PROMPT, head=("s",)))
    assert [blocks(salted, salt=salt) for salt in ("s", None, "t")] == [3, 0, 0]
    common = ("a",)
    tuned = picture(stored([1, 2, 3], PROMPT, extra_keys=((*common, "s"), common, common)))
    assert [blocks(tuned, adapter="a", salt="s"), blocks(tuned, adapter="a"), blocks(tuned, salt="s")] == [3, 0, 0]


def test_a_parent_from_before_is_no_head() -> None:
    assert blocks(picture(stored([2, 3], PROMPT[4:], parent=1)), PROMPT[4:]) == 0


@pytest.mark.parametrize(
    "void",
    [
        KvEvent("lost"),
        stored([9], [1, 2, 3, 4], extra_keys=()),
        stored([9], [1, 2, 3, 4], group=1),
    ],
    ids=["events are missing", "salts are not told", "caches of several kinds"],
)
def test_a_void_picture_shows_nothing_ever_again(void: KvEvent) -> None:
    assert blocks(picture(stored([1, 2, 3], PROMPT), void)) == 0
    assert blocks(picture(void, stored([1, 2, 3], PROMPT))) == 0


def test_nothing_is_shown_before_the_past_is_known() -> None:
    assert blocks(picture(stored([1, 2, 3], PROMPT), is_current=False)) == 0
