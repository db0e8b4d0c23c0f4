"""Prompts for traces that hold block hashes only: token ids derived from the hashes, to drive a real engine with.

A block becomes the same tokens wherever its hash stands, hence two requests with k leading hashes in common share
exactly k blocks of tokens. Only lengths and reuse are real; the tokens mean nothing. What a trace looks like is the
business of the formats.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from warmup_tasks.errors import ConfigurationError
from warmup_tasks.identity import digest
from warmup_tasks.sources import prompts

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1, _MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_RESERVED_LOW, _RESERVED_HIGH, _RESERVED_PART = 1_000, 2_048, 8

Words = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class HashPrompts:
    """How token ids are derived from block hashes.

    Attributes:
        tokens_per_block: tokens that one block of the trace becomes; fewer than the trace's own scale the prompts down.
        vocabulary_size: of the model that gets them. The ids at both ends, where tokenizers keep their special tokens,
            are left out: at most 1,000 below and 2,048 above, and at most an eighth of the vocabulary each.
        special_ids: further ids to leave out.
        max_tokens: longer prompts are not made; None: any length.

    Raises:
        ConfigurationError: a number below 1, or no id left to use.
    """

    tokens_per_block: int
    vocabulary_size: int
    special_ids: frozenset[int] = frozenset()
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        if self.tokens_per_block < 1:
            raise ConfigurationError("tokens_per_block: must be 1 or more")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise ConfigurationError("max_tokens: must be 1 or more")
        if len(self._ordinary_ids) < 2:
            raise ConfigurationError(f"vocabulary_size: {self.vocabulary_size} leaves fewer than 2 ordinary token ids")

    def token_ids(
        self, block_hashes: Sequence[int] | Words, block_tokens: int, input_tokens: int | None, tail_name: str
    ) -> npt.NDArray[np.int64] | None:
        """Return the prompt's token ids, or None where it has more than ``max_tokens``.

        Args:
            block_hashes: of the prompt's leading blocks, each below 2^64; the last one may stand for a part of a block.
            block_tokens: tokens of one block in the trace.
            input_tokens: of the whole prompt in the trace; None: whole blocks only.
            tail_name: what tells this request from others; tokens behind the last hash are derived from it.
        """
        whole, last, tail = self._lengths(len(block_hashes), block_tokens, input_tokens)
        if self.max_tokens is not None and whole * self.tokens_per_block + last + tail > self.max_tokens:
            return None
        seeds = np.asarray(block_hashes, dtype=np.uint64)
        words = _words(seeds, self.tokens_per_block).reshape(-1)[: whole * self.tokens_per_block + last]
        if tail:
            seed = np.array([int(digest([tail_name])[:16], 16)], dtype=np.uint64)
            words = np.concatenate([words, _words(seed, tail)[0]])
        ids: npt.NDArray[np.int64] = self._ordinary_ids[words % np.uint64(len(self._ordinary_ids))]
        return ids

    def prompt(
        self, block_hashes: Sequence[int] | Words, block_tokens: int, input_tokens: int | None, tail_name: str
    ) -> prompts.Prompt | None:
        """Return the prompt as it is stored, or None where it is too long; arguments as in :meth:`token_ids`."""
        ids = self.token_ids(block_hashes, block_tokens, input_tokens, tail_name)
        return None if ids is None else prompts.completion(ids.tolist(), "token_ids")

    @cached_property
    def _ordinary_ids(self) -> npt.NDArray[np.int64]:
        part = max(0, self.vocabulary_size) // _RESERVED_PART
        ids = np.arange(min(_RESERVED_LOW, part), self.vocabulary_size - min(_RESERVED_HIGH, part))
        return np.setdiff1d(ids, np.array(sorted(self.special_ids), dtype=np.int64))

    def _lengths(self, hashes: int, block_tokens: int, input_tokens: int | None) -> tuple[int, int, int]:
        """Return whole blocks, tokens of a last hash that stands for a part, and tokens behind the last hash."""
        rest = 0 if input_tokens is None else input_tokens - hashes * block_tokens
        if rest >= 0:
            return hashes, 0, self._scaled(rest, block_tokens)
        if rest > -block_tokens:
            return hashes - 1, self._scaled(block_tokens + rest, block_tokens), 0
        return hashes, 0, 0  # fewer tokens than hashes tell: the hashes count

    def _scaled(self, tokens: int, block_tokens: int) -> int:
        """Return a part's length; it neither vanishes nor grows into a whole block."""
        return 0 if tokens == 0 else max(1, tokens * self.tokens_per_block // block_tokens)


def _words(seeds: Words, positions: int) -> Words:
    """Return 64 pseudo-random bits for each seed and position (the finaliser of splitmix64, twice)."""
    with np.errstate(over="ignore"):
        steps = np.arange(1, positions + 1, dtype=np.uint64) * _GOLDEN
        return _mixed(_mixed(seeds)[:, None] + steps[None, :])


def _mixed(values: Words) -> Words:
    values = (values ^ (values >> np.uint64(30))) * _MIX_1
    values = (values ^ (values >> np.uint64(27))) * _MIX_2
    return values ^ (values >> np.uint64(31))
