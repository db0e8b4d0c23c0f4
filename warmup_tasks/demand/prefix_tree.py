"""The prefix tree over token blocks, compressed: a node is the longest run of blocks that the same prompts share.

Blocks are named by chained hashes, as the engine names them: a block's hash covers its parent's, so equal hashes mean
equal prefixes at equal model, adapter and salt. Here live hashing, tree and sums over it; no choice of what to warm.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import xxhash

from warmup_tasks.identity import canonical_json

NO_NODE = -1

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class TokenSequence(NamedTuple):
    """One distinct prompt in the tree.

    ``stable_tokens`` are those that will still be asked for: all of them, or those before a volatile head. ``seed``
    comes from :func:`tree_seed`; sequences with different seeds share nothing.
    """

    token_ids: npt.NDArray[np.int32]
    stable_tokens: int
    seed: bytes
    step_tokens: int


@lru_cache(maxsize=4096)
def tree_seed(model: str, adapter: str | None, cache_salt: str | None) -> bytes:
    """Return the hash that a prompt's first block has as its parent (16 bytes)."""
    return bytes(xxhash.xxh3_128_digest(canonical_json({"model": model, "adapter": adapter, "salt": cache_salt})))


def warmable_steps(sequence: TokenSequence) -> int:
    """Return how many whole steps of a prompt can ever be hit: its last token is always computed anew."""
    return max(0, min(len(sequence.token_ids) - 1, sequence.stable_tokens)) // sequence.step_tokens


def block_hashes(sequence: TokenSequence) -> Iterable[bytes]:
    """Yield the chained hash (16 bytes) of each warmable step of a prompt."""
    data = np.ascontiguousarray(sequence.token_ids, dtype=np.int32).tobytes()
    width = 4 * sequence.step_tokens
    parent = sequence.seed
    for start in range(0, warmable_steps(sequence) * width, width):
        parent = xxhash.xxh3_128_digest(parent + data[start : start + width])
        yield parent


@dataclass(frozen=True, slots=True)
class PrefixTree:
    """The compressed tree; parents stand before children.

    Attributes:
        parent: of each node, or -1.
        start_tokens: tokens before the node's run.
        end_tokens: tokens up to the end of its run, a multiple of the step.
        example: index of a sequence that passes through the node.
        name: hex of the chained hash at the end of its run.
        leaf: deepest node of each sequence, or -1 for a sequence without a warmable step.
    """

    parent: Ints
    start_tokens: Ints
    end_tokens: Ints
    example: Ints
    name: list[str]
    leaf: Ints

    @classmethod
    def build(cls, sequences: Sequence[TokenSequence]) -> "PrefixTree":
        """Return the tree of the sequences; cost grows with their blocks."""
        known: dict[bytes, int] = {}
        parents: list[int] = []
        examples: list[int] = []
        leaves = np.full(len(sequences), NO_NODE, dtype=np.int64)
        for index, sequence in enumerate(sequences):
            block = NO_NODE
            for name in block_hashes(sequence):
                above, block = block, known.setdefault(name, len(parents))
                if block == len(parents):
                    parents.append(above)
                    examples.append(index)
            leaves[index] = block
        return cls._compress(sequences, list(known), parents, examples, leaves)

    @classmethod
    def _compress(
        cls,
        sequences: Sequence[TokenSequence],
        names: list[bytes],
        parents: list[int],
        examples: list[int],
        leaves: Ints,
    ) -> "PrefixTree":
        above = np.asarray(parents, dtype=np.int64)
        children = np.bincount(above[above >= 0], minlength=len(parents))
        is_end = children != 1
        is_end[leaves[leaves >= 0]] = True
        node_of: list[int] = []
        parent: list[int] = []
        steps: list[int] = []
        last_block: list[int] = []
        for block, over in enumerate(parents):
            if over == NO_NODE or is_end[over]:
                node_of.append(len(parent))
                parent.append(node_of[over] if over != NO_NODE else NO_NODE)
                steps.append(1)
                last_block.append(block)
            else:
                node = node_of[over]
                node_of.append(node)
                steps[node] += 1
                last_block[node] = block
        example = np.asarray([examples[block] for block in last_block], dtype=np.int64)
        start = np.zeros(len(parent), dtype=np.int64)
        end = np.zeros(len(parent), dtype=np.int64)
        for node, over in enumerate(parent):
            start[node] = end[over] if over != NO_NODE else 0
            end[node] = start[node] + steps[node] * sequences[example[node]].step_tokens
        leaf = np.asarray([node_of[block] if block >= 0 else NO_NODE for block in leaves], dtype=np.int64)
        tree_parent = np.asarray(parent, dtype=np.int64)
        return cls(tree_parent, start, end, example, [names[block].hex() for block in last_block], leaf)

    def __len__(self) -> int:
        return len(self.parent)

    def sums(self, values: Floats) -> Floats:
        """Return, per node, the sums of the values of all sequences that pass through it.

        Args:
            values: one row a sequence, shape (sequences, columns).

        Returns:
            Shape (nodes, columns).
        """
        totals = np.zeros((len(self), values.shape[1]))
        inside = self.leaf >= 0
        np.add.at(totals, self.leaf[inside], values[inside])
        for node in range(len(self) - 1, -1, -1):
            if self.parent[node] != NO_NODE:
                totals[self.parent[node]] += totals[node]
        return totals

    def unions(self, members: Sequence[Iterable[int]]) -> list[set[int]]:
        """Return, per node, the union of the members of all sequences that pass through it."""
        found: list[set[int]] = [set() for _ in range(len(self))]
        for leaf, own in zip(self.leaf, members, strict=True):
            if leaf != NO_NODE:
                found[leaf].update(own)
        for node in range(len(self) - 1, -1, -1):
            if self.parent[node] != NO_NODE:
                found[self.parent[node]] |= found[node]
        return found
