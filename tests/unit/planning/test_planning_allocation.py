"""The tree knapsack: closed under prefixes, never over capacity, optimal where gains fall on the way down."""

from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from warmup_tasks.planning.allocation import NO_NODE, allocate

Tree = tuple[list[int], list[int], list[float]]


@st.composite
def trees(draw: st.DrawFn, max_nodes: int = 6, *, falling: bool = False) -> Tree:
    count = draw(st.integers(1, max_nodes))
    parents = [draw(st.integers(NO_NODE, node - 1)) for node in range(count)]
    blocks = [draw(st.integers(1, 4)) for _ in range(count)]
    per_block: list[int] = []
    for node in range(count):
        top = per_block[parents[node]] if falling and parents[node] != NO_NODE else 20
        per_block.append(draw(st.integers(0, top)))
    return parents, blocks, [float(value * length) for value, length in zip(per_block, blocks, strict=True)]


def worth(taken: list[int], tree: Tree) -> float:
    return sum(gain * part / length for part, length, gain in zip(taken, tree[1], tree[2], strict=True))


def is_closed(taken: list[int], tree: Tree) -> bool:
    parents, blocks, _ = tree
    return all(
        not part or above == NO_NODE or taken[above] == blocks[above]
        for part, above in zip(taken, parents, strict=True)
    )


def optimum(tree: Tree, capacity: int) -> float:
    choices = product(*(range(length + 1) for length in tree[1]))
    return max(worth(list(t), tree) for t in choices if sum(t) <= capacity and is_closed(list(t), tree))


@given(trees(max_nodes=14), st.integers(-3, 40))
@settings(max_examples=300, deadline=None)
def test_the_choice_is_prefix_closed_and_within_capacity(tree: Tree, capacity: int) -> None:
    taken = allocate(*tree, capacity)
    assert is_closed(taken, tree)
    assert sum(taken) <= max(0, capacity)
    assert all(0 <= part <= length for part, length in zip(taken, tree[1], strict=True))


@given(trees(falling=True, max_nodes=5), st.integers(0, 14))
@settings(max_examples=150, deadline=None)
def test_it_is_optimal_where_gain_per_block_falls_on_the_way_down(tree: Tree, capacity: int) -> None:
    assert worth(allocate(*tree, capacity), tree) == optimum(tree, capacity)


def test_it_comes_close_to_the_optimum_on_arbitrary_trees() -> None:
    shares: list[float] = []

    @given(trees(max_nodes=5), st.integers(1, 12))
    @settings(max_examples=150, deadline=None, derandomize=True)
    def collect(tree: Tree, capacity: int) -> None:
        best = optimum(tree, capacity)
        shares.append(worth(allocate(*tree, capacity), tree) / best if best else 1.0)

    collect()
    assert sum(shares) / len(shares) > 0.95


def test_a_worthless_ancestor_is_taken_for_what_stands_below_it() -> None:
    assert allocate([NO_NODE, 0, NO_NODE], [1, 1, 1], [0.0, 10.0, 3.0], 2) == [1, 1, 0]


def test_the_last_run_is_cut_to_fit() -> None:
    assert allocate([NO_NODE, 0, 0], [3, 5, 5], [30.0, 25.0, 45.0], 6) == [3, 0, 3]


def test_everything_fits_into_a_large_cache() -> None:
    assert allocate([NO_NODE, 0, 0], [3, 5, 5], [30.0, 25.0, 45.0], 99) == [3, 5, 5]
    assert allocate([], [], [], 5) == []
