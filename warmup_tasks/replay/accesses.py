"""A log as a sequence of block accesses: dense numbers, request boundaries, times.

Here requests of the lake, or lists in memory, become arrays that the replay runs on. Two blocks are one only within one
model, adapter and cache salt. Nothing is replayed here.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from warmup_tasks.errors import ContractError

Ids = npt.NDArray[np.int32]
Ints = npt.NDArray[np.int64]
Names = npt.NDArray[np.uint64]
Floats = npt.NDArray[np.float64]

NO_BLOCK = -1
_FETCHED_TOGETHER = 32
_LEAST_BITS = 12


@dataclass(frozen=True, slots=True, eq=False)
class Accesses:
    """Requests in order of time, each with the blocks of its prompt in prompt order.

    Attributes:
        ids: block numbers from 0 on, in order of first appearance, shape (accesses,).
        offsets: request r has ``ids[offsets[r]:offsets[r + 1]]``, shape (requests + 1,).
        times_s: arrival of each request in s since 1970 or since any other moment, never falling.
        prompt_tokens: of each request.
        names: what the source calls each block, shape (blocks,); the same 64-bit hash may stand under several models.
        block_tokens: tokens a block.
    """

    ids: Ids
    offsets: Ints
    times_s: Floats
    prompt_tokens: Ints
    names: Names
    block_tokens: int

    def __len__(self) -> int:
        """Return the number of requests."""
        return len(self.offsets) - 1

    @property
    def blocks(self) -> int:
        """The number of distinct blocks."""
        return len(self.names)

    def request(self, index: int) -> Ids:
        """Return the blocks of one request."""
        return self.ids[self.offsets[index] : self.offsets[index + 1]]

    def lengths(self) -> Ints:
        """Return how many blocks each request has."""
        return np.diff(self.offsets)

    def between(self, since_s: float = -np.inf, until_s: float = np.inf) -> Self:
        """Return the requests of [since_s, until_s); block numbers stay what they are."""
        first, stop = np.searchsorted(self.times_s, [since_s, until_s], side="left")
        start, end = self.offsets[first], self.offsets[max(first, stop)]
        return type(self)(
            self.ids[start:end],
            self.offsets[first : max(first, stop) + 1] - start,
            self.times_s[first:stop],
            self.prompt_tokens[first:stop],
            self.names,
            self.block_tokens,
        )

    def parents(self) -> Ids:
        """Return the block before each block in its prompt (-1: none, or not asked for), as it first appeared.

        A chained block has one parent only; for names that are not chained the first one counts.
        """
        parents = np.full(self.blocks, NO_BLOCK, np.int32)
        before = np.empty_like(self.ids)
        before[1:] = self.ids[:-1]
        before[self.offsets[:-1][self.lengths() > 0]] = NO_BLOCK
        parents[self.ids[::-1]] = before[::-1]
        return parents

    def uses(self, replica_of: Ids, replicas: int) -> Ints:
        """Return how often each replica was asked for each block, shape (replicas, blocks).

        A block that one replica alone is asked for belongs there; one that all are asked for belongs to all.

        Args:
            replica_of: where each request went, such as ``Result.replica``.
            replicas: how many there are.
        """
        places = np.repeat(replica_of.astype(np.int64), self.lengths()) * self.blocks + self.ids
        return np.bincount(places, minlength=replicas * self.blocks).reshape(replicas, self.blocks)

    @classmethod
    def of(
        cls,
        requests: Iterable[Sequence[int]],
        times_s: Sequence[float] | None = None,
        *,
        block_tokens: int = 1,
        prompt_tokens: Sequence[int] | None = None,
    ) -> Self:
        """Return lists of 64-bit block names as accesses; requests arrive 1 s apart where no times are given."""
        listed = [np.asarray(request, np.uint64) for request in requests]
        names = np.concatenate([np.zeros(0, np.uint64), *listed])
        lengths = np.asarray([len(request) for request in listed], np.int64)
        times = np.arange(len(listed), dtype=np.float64) if times_s is None else np.asarray(times_s, np.float64)
        tokens = None if prompt_tokens is None else np.asarray(prompt_tokens, np.int64)
        return cls.of_arrays(names, lengths, times, block_tokens=block_tokens, prompt_tokens=tokens)

    @classmethod
    def of_arrays(
        cls,
        names: Names,
        lengths: Ints,
        times_s: Floats,
        *,
        block_tokens: int,
        prompt_tokens: Ints | None = None,
        scopes: Ints | None = None,
    ) -> Self:
        """Return arrays as accesses.

        Args:
            names: block names of all requests one after another, shape (accesses,).
            lengths: blocks of each request, shape (requests,).
            times_s: arrival of each request, never falling.
            block_tokens: tokens a block.
            prompt_tokens: of each request; None: whole blocks.
            scopes: a number of each request's model, adapter and salt; None: one for all.

        Raises:
            ContractError: times fall, or the shapes do not fit.
        """
        if len(times_s) != len(lengths) or lengths.sum() != len(names):
            raise ContractError("accesses: one time and one length a request, one name an access")
        if len(times_s) and (np.diff(times_s) < 0).any():
            raise ContractError("accesses: requests must stand in order of time")
        ids, known = dense_ids(names)
        if scopes is not None and len(scopes) and (scopes != scopes[0]).any():
            pairs = (np.repeat(scopes, lengths).astype(np.uint64) << np.uint64(32)) | ids.astype(np.uint64)
            ids, scoped = dense_ids(pairs)
            known = known[(scoped & np.uint64(0xFFFFFFFF)).astype(np.int64)]
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])
        tokens = lengths * block_tokens if prompt_tokens is None else prompt_tokens
        return cls(ids, offsets, times_s.astype(np.float64), tokens.astype(np.int64), known, block_tokens)


def dense_ids(names: Names) -> tuple[Ids, Names]:
    """Return each access's block number, in order of first appearance, and number → name.

    Exact for any 64-bit names; time grows with the accesses, memory beside the result is about 12 bytes an access, up
    to 30 where nearly every access is a new block.

    Args:
        names: shape (accesses,).
    """
    from warmup_tasks.replay.compiled.ids import number, refill

    names = np.require(names, np.uint64, ["C", "W"])
    ids, known = np.empty(len(names), np.int32), np.empty(len(names) + 1, np.uint64)
    follower, fetched = np.zeros(len(names) + 1, np.uint32), np.empty(_FETCHED_TOGETHER, np.uint64)
    bits = max(_LEAST_BITS, len(names).bit_length() - 1)
    table = np.zeros(1 << bits, np.uint64)
    position, count = number(names, 0, ids, known, follower, 0, table, 64 - bits, fetched)
    while position < len(names):
        bits += 1
        table = np.zeros(1 << bits, np.uint64)
        refill(known, count, table, 64 - bits, fetched)
        position, count = number(names, position, ids, known, follower, count, table, 64 - bits, fetched)
    return ids, known[1 : count + 1]
