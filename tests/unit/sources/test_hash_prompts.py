"""Token-id prompts from block hashes: what two requests share in the trace is what they share in tokens, exactly."""

from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warmup_tasks.errors import ConfigurationError
from warmup_tasks.sources.hash_prompts import HashPrompts

RULE = HashPrompts(tokens_per_block=32, vocabulary_size=32_000)
HASHES = st.lists(st.integers(0, 2**64 - 1), max_size=8)


def ids(hashes: list[int], input_tokens: int | None = None, name: str = "r", rule: HashPrompts = RULE) -> list[int]:
    derived = rule.token_ids(hashes, 512, input_tokens, name)
    assert derived is not None
    return list(derived.tolist())


def shared(one: list[int], other: list[int]) -> int:
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


@settings(max_examples=200, deadline=None)
@given(HASHES, HASHES, HASHES)
def test_requests_share_exactly_the_tokens_of_the_blocks_that_they_share(
    common: list[int], one: list[int], other: list[int]
) -> None:
    if one[:1] == other[:1]:
        return
    tokens = shared(ids(common + one), ids(common + other))
    assert tokens // 32 == len(common)
    assert tokens - 32 * len(common) <= 1  # two blocks may begin with one token by chance, hardly with two


def test_diverging_blocks_seldom_share_their_first_token() -> None:
    first = [ids([n])[0] for n in range(2_000)]
    assert sum(a == b for a, b in pairwise(first)) <= 3  # 1 in 29,000 is expected
    assert len(set(first)) > 1_900


def test_the_same_trace_gives_the_same_tokens_everywhere() -> None:
    assert ids([1, 2**63, 2**64 - 1], 3 * 512)[:3] == ids([1])[:3]
    assert ids([1])[:4] == [29850, 3263, 2783, 10084]  # pinned: another platform or version must not change it
    assert ids([], 200, "r")[:4] == [5809, 25837, 10942, 28126]


@pytest.mark.parametrize(
    ("hashes", "input_tokens", "length"),
    [
        (2, 1024, 64),
        (2, None, 64),
        (2, 1000, 62),  # the last hash stands for 488 of 512 tokens: 30.5 of 32
        (2, 513, 33),  # one token of the last block: it does not vanish
        (2, 1023, 63),  # nor does a part become a whole block
        (2, 1100, 68),  # 76 tokens behind the last hash
        (0, 100, 6),
        (2, 20, 64),  # fewer tokens than hashes tell: the hashes count
        (0, 0, 0),
    ],
)
def test_lengths_are_scaled_block_by_block_and_the_rest_in_proportion(
    hashes: int, input_tokens: int | None, length: int
) -> None:
    assert len(ids(list(range(hashes)), input_tokens)) == length


def test_a_part_of_a_block_is_the_beginning_of_that_block() -> None:
    assert ids([7, 8], 1000) == ids([7, 8])[:62]


def test_tokens_behind_the_last_hash_belong_to_one_request_alone() -> None:
    one, other = ids([7], 1000, "a"), ids([7], 1000, "b")
    assert one[:32] == other[:32]
    assert one[32:] != other[32:]
    assert len(one) == len(other) == 62


@pytest.mark.parametrize("vocabulary_size", [64, 512, 4_096, 32_000, 128_256, 151_936])
def test_special_ids_are_left_out(vocabulary_size: int) -> None:
    special = frozenset(range(100, 110)) | {30, 31}
    rule = HashPrompts(64, vocabulary_size, special)
    seen = set(ids([*range(400)], rule=rule))
    assert not seen & special
    assert min(seen) >= min(1_000, vocabulary_size // 8)
    assert max(seen) < vocabulary_size - min(2_048, vocabulary_size // 8)


def test_prompts_that_are_too_long_are_not_made() -> None:
    rule = HashPrompts(32, 32_000, max_tokens=64)
    assert rule.token_ids([1, 2], 512, 1024, "r") is not None
    assert rule.token_ids([1, 2, 3], 512, 1025, "r") is None
    assert rule.prompt([1, 2, 3], 512, 1025, "r") is None


def test_the_stored_prompt_holds_the_ids() -> None:
    prompt = RULE.prompt(np.array([1, 2], dtype=np.uint64), 512, 600, "r")
    assert prompt is not None
    assert prompt.body_json == '{"token_ids":' + str(ids([1, 2], 600)).replace(" ", "") + "}"
    assert prompt.sha256 is not None


def test_numbers_that_cannot_be_are_refused_with_their_name() -> None:
    for changes, name in product(({"tokens_per_block": 0}, {"vocabulary_size": 1}, {"max_tokens": 0}), ("",)):
        with pytest.raises(ConfigurationError, match=next(iter(changes)) + name):
            HashPrompts(**{"tokens_per_block": 1, "vocabulary_size": 100, **changes})  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="ordinary"):
        HashPrompts(1, 8, frozenset(range(8)))
