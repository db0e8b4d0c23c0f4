"""The compressed prefix tree against hand-made trees and against a plain model of it."""

from collections.abc import Sequence

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from warmup_tasks.demand.candidates import choose_candidates
from warmup_tasks.demand.prefix_tree import NO_NODE, PrefixTree, TokenSequence, block_hashes, tree_seed, warmable_steps

SEED = tree_seed("m", None, None)


def sequence(tokens: Sequence[int], stable: int | None = None, seed: bytes = SEED, step: int = 2) -> TokenSequence:
    return TokenSequence(np.asarray(tokens, dtype=np.int32), len(tokens) if stable is None else stable, seed, step)


def test_the_last_token_is_never_cached_so_a_block_needs_one_more() -> None:
    assert [warmable_steps(sequence(range(n), step=16)) for n in (0, 15, 16, 17, 32, 33)] == [0, 0, 0, 1, 1, 2]
    assert warmable_steps(sequence(range(100), stable=40, step=16)) == 2


def test_a_block_s_hash_covers_parent_tokens_adapter_and_salt() -> None:
    one, other = list(block_hashes(sequence([1, 2, 3, 4, 5]))), list(block_hashes(sequence([9, 9, 3, 4, 5])))
    assert len(one) == 2
    assert not set(one) & set(other)
    seeds = {
        tree_seed("m", None, None),
        tree_seed("m", "a", None),
        tree_seed("m", None, "a"),
        tree_seed("n", None, None),
    }
    first_blocks = {next(iter(block_hashes(sequence([1, 2, 3], seed=seed)))) for seed in seeds}
    assert (len(seeds), len(first_blocks)) == (4, 4)


def test_runs_end_where_prompts_part_or_end() -> None:
    tree = PrefixTree.build(
        [
            sequence([1, 1, 2, 2, 3, 3, 0]),  # shares two blocks with the next
            sequence([1, 1, 2, 2, 4, 4, 5, 5, 0]),
            sequence([1, 1, 2, 2, 4, 4, 0]),  # ends inside the second one's run
            sequence([7, 7]),  # has no block that can be hit
        ]
    )
    spans = list(zip(tree.start_tokens.tolist(), tree.end_tokens.tolist(), tree.parent.tolist(), strict=True))
    assert spans == [(0, 4, NO_NODE), (4, 6, 0), (4, 6, 0), (6, 8, 2)]
    assert tree.leaf.tolist() == [1, 3, 2, NO_NODE]
    uses = tree.sums(np.asarray([[1.0], [2.0], [4.0], [100.0]]))
    assert uses[:, 0].tolist() == [7.0, 1.0, 6.0, 2.0]
    assert tree.unions([[1], [1, 2], [3], [9]]) == [{1, 2, 3}, {1}, {1, 2, 3}, {1, 2}]


prompts = st.lists(st.tuples(st.lists(st.integers(0, 2), max_size=9), st.integers(1, 5)), min_size=1, max_size=12)


@given(prompts)
@settings(max_examples=150, deadline=None)
def test_sums_are_those_of_counting_prefixes_one_by_one(items: list[tuple[list[int], int]]) -> None:
    sequences = [sequence(tokens) for tokens, _ in items]
    tree = PrefixTree.build(sequences)
    counts: dict[tuple[int, ...], int] = {}
    for (tokens, uses), item in zip(items, sequences, strict=True):
        for steps in range(1, warmable_steps(item) + 1):
            prefix = tuple(tokens[: 2 * steps])
            counts[prefix] = counts.get(prefix, 0) + uses
    sums = tree.sums(np.asarray([[float(uses)] for _, uses in items]))
    covered = 0
    for node in range(len(tree)):
        tokens = items[tree.example[node]][0]
        for end in range(tree.start_tokens[node] + 2, tree.end_tokens[node] + 1, 2):
            assert counts[tuple(tokens[:end])] == sums[node, 0]
            covered += 1
    assert covered == len(counts)


def _candidates(
    tree: PrefixTree, uses: list[float], **limits: int
) -> tuple[list[int], list[str | None], dict[str, int]]:
    values = np.asarray(uses)
    found = choose_candidates(tree, values, values, **({"min_uses": 2, "prefetch_depth": 8, "top_k": 100} | limits))
    names = [None if root is None else str(tree.name.index(root)) for root in found.roots]
    return found.nodes, names, found.dropped


def _branching_tree() -> PrefixTree:
    # 0: system prompt; 1, 3: two sessions below it; 2: a turn below 1
    return PrefixTree.build([sequence([1, 1, 2, 2, 3, 3, 0]), sequence([1, 1, 2, 2, 0]), sequence([1, 1, 5, 5, 0])])


def test_a_node_that_subtrees_share_has_no_root_and_is_never_held_out() -> None:
    tree = _branching_tree()
    assert tree.parent.tolist() == [NO_NODE, 0, 1, 0]
    assert _candidates(tree, [9, 5, 4, 4])[:2] == ([0, 1, 2, 3], [None, "1", "1", "3"])


def test_what_is_too_rare_to_warm_does_not_make_its_parent_shared() -> None:
    nodes, roots, dropped = _candidates(_branching_tree(), [9, 5, 4, 1])
    assert (nodes, roots[:3]) == ([0, 1, 2], ["0", "0", "0"])
    assert dropped["too rare"] == 1


def test_depth_counts_branchings_not_turns() -> None:
    tree = _branching_tree()
    assert _candidates(tree, [9, 5, 4, 4], prefetch_depth=1)[0] == [0, 1, 2, 3]
    deeper = PrefixTree.build(
        [sequence([1, 1, 2, 2, 3, 3, 0]), sequence([1, 1, 2, 2, 4, 4, 0]), sequence([1, 1, 5, 5, 0])]
    )
    nodes, _, dropped = _candidates(deeper, [9, 6, 3, 3, 3], prefetch_depth=1)
    assert (nodes, dropped["below prefetch depth"]) == ([0, 1, 4], 2)


def test_top_k_keeps_the_ancestors_of_what_it_keeps() -> None:
    tree = PrefixTree.build([sequence([1, 1, *range(10, 30), 0]), sequence([1, 1, 5, 5, 0])])
    nodes, _, dropped = _candidates(tree, [9, 5, 4], top_k=1)
    assert (nodes, dropped["beyond top_k"]) == ([0, 1], 1)
