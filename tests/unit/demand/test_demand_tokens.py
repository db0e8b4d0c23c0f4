"""Tokens are asked of the engine once per body and identity, and kept no longer than the lookback."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from warmup_tasks.demand.tokens import identity_of, tokens_of
from warmup_tasks.errors import ContractError
from warmup_tasks.items import PromptBody, ReplicaState
from warmup_tasks.lake.store import Lake

AS_OF = datetime(2026, 11, 27, 2, tzinfo=UTC)
OLD = AS_OF - timedelta(days=9)


def _bodies(*texts: str, seen: datetime = AS_OF) -> dict[str, tuple[str, datetime]]:
    return {f"sha-{text}": (PromptBody(prompt=text).model_dump_json(exclude_none=True), seen) for text in texts}


def _ask(lake: Lake, bodies: Any, engine: Any, identity: str = "i" * 64, **values: Any) -> Any:
    return tokens_of(lake, "org/m~1", identity, bodies, engine, keep_since=AS_OF - timedelta(days=3), **values)


def test_a_second_night_asks_only_for_what_is_new(lake: Lake, engine: Any) -> None:
    first = _ask(lake, _bodies("a b", "c"), engine)
    second = _ask(lake, _bodies("a b", "c", "d"), engine)
    assert (first.asked, second.asked, second.reused, engine.asked) == (2, 1, 2, 3)
    assert second.token_ids["sha-a b"].tolist() == first.token_ids["sha-a b"].tolist() == [1, 2]


def test_another_identity_reuses_nothing(lake: Lake, engine: Any) -> None:
    _ask(lake, _bodies("a b"), engine)
    assert _ask(lake, _bodies("a b"), engine, identity="j" * 64).asked == 1


def test_the_same_night_again_changes_nothing(lake: Lake, engine: Any) -> None:
    assert _ask(lake, _bodies("a b"), engine).ref == _ask(lake, _bodies("a b"), engine).ref


def test_refusals_are_kept_like_tokens(lake: Lake, engine: Any) -> None:
    for _ in range(2):
        found = _ask(lake, _bodies("refuse-me now", "x"), engine)
        assert found.refused == {"sha-refuse-me now": "the engine refused"}
        assert set(found.token_ids) == {"sha-x"}
    assert engine.asked == 2


def test_what_was_last_seen_before_the_lookback_is_dropped(lake: Lake, engine: Any) -> None:
    _ask(lake, _bodies("a", seen=OLD), engine)
    assert _ask(lake, _bodies("a"), engine).asked == 1
    _ask(lake, _bodies("b"), engine)
    assert _ask(lake, _bodies("a"), engine).asked == 0  # kept over a night that did not ask for it


def test_progress_counts_prompts_to_the_end(lake: Lake, engine: Any) -> None:
    seen: list[tuple[int, int]] = []
    _ask(lake, _bodies(*(str(n) for n in range(300))), engine, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(256, 300), (300, 300)]


def test_a_missing_answer_is_an_error(lake: Lake) -> None:
    with pytest.raises(ContractError, match="answered 0 of 1"):
        _ask(lake, _bodies("a"), lambda _: [])


def test_a_broken_body_is_named_without_its_content(lake: Lake, engine: Any) -> None:
    with pytest.raises(ContractError) as caught:
        _ask(lake, {"x": ('{"secret": 1}', AS_OF)}, engine)
    assert "secret" not in str(caught.value)


def test_replicas_that_differ_in_identity_share_no_tokens(replicas: list[ReplicaState]) -> None:
    other: Callable[[str], ReplicaState] = lambda sha: replicas[1].model_copy(update={"identity_digest": sha})  # noqa: E731
    same = identity_of("m", replicas)
    assert same == replicas[0].identity_digest
    assert identity_of("m", [replicas[0], other("f" * 64)]) not in {same, "f" * 64}
