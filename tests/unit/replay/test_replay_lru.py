"""Prefix-run LRU: the published figures, a naive model, another simulator, and every capacity in one pass."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.block_logs import any_logs, naive_hits
from warmup_tasks.errors import ContractError
from warmup_tasks.replay.accesses import Accesses, dense_ids
from warmup_tasks.replay.lru import TouchOrder, hit_curve, hit_ratios, replay_lru

PUBLISHED = {1_000: 0.0445, 10_000: 0.2112, 30_000: 0.3257, 50_000: 0.3546, 100_000: 0.3637}


def test_the_published_figures_come_out(conversations):
    assert (len(conversations), len(conversations.ids), conversations.blocks) == (12_031, 288_500, 182_790)
    assert round(replay_lru(conversations, None).hit_ratio, 4) == 0.3664
    assert {size: round(ratio, 4) for size, ratio in hit_ratios(conversations, [*PUBLISHED]).items()} == PUBLISHED
    curve = hit_curve(conversations)
    assert {size: round(curve.hit_ratio(size), 4) for size in PUBLISHED} == PUBLISHED
    assert round(curve.hit_ratio(), 4) == 0.3664


def test_parents_that_outlive_their_leaves_hit_more_often(conversations):
    leading, trailing = (replay_lru(conversations, 10_000, touch_order=order).hit_ratio for order in TouchOrder)
    assert round(trailing, 4) == 0.2116
    assert trailing > leading


@settings(max_examples=150, deadline=None)
@given(any_logs, st.integers(0, 9), st.sampled_from(TouchOrder), st.booleans())
def test_hits_are_those_of_the_definition(requests, capacity, touch_order, counts_runs):
    found = replay_lru(Accesses.of(requests), capacity, touch_order=touch_order, counts_runs=counts_runs)
    assert found.hits.tolist() == naive_hits(requests, capacity, touch_order, counts_runs=counts_runs)


@settings(max_examples=150, deadline=None)
@given(any_logs, st.sampled_from(TouchOrder), st.booleans())
def test_one_pass_gives_what_direct_replay_gives_at_every_capacity(requests, touch_order, counts_runs):
    log = Accesses.of(requests)
    curve = hit_curve(log, touch_order=touch_order, counts_runs=counts_runs)
    direct = [
        int(replay_lru(log, capacity, touch_order=touch_order, counts_runs=counts_runs).hits.sum())
        for capacity in range(log.blocks + 1)
    ]
    assert curve.hits.tolist() == direct
    assert curve.hit_ratio() == curve.hit_ratio(10**6)


def test_one_pass_equals_direct_replay_on_the_real_log(conversations):
    for order in TouchOrder:
        curve = hit_curve(conversations, touch_order=order)
        for capacity in (1, 37, 4_096, 77_777, 182_790):
            assert curve.hits[capacity] == replay_lru(conversations, capacity, touch_order=order).hits.sum()


def test_where_the_models_coincide_another_simulator_agrees(conversations, tmp_path):
    libcachesim = pytest.importorskip("libcachesim")
    records = np.zeros(len(conversations.ids), [("time", "<u4"), ("id", "<u8"), ("size", "<u4"), ("next", "<i8")])
    records["id"], records["size"], records["next"] = conversations.ids, 1, -2
    path = tmp_path / "accesses.bin"
    records.tofile(path)
    for capacity in (1_000, 30_000):
        reader = libcachesim.TraceReader(str(path), libcachesim.TraceType.ORACLE_GENERAL_TRACE)
        miss_ratio, _ = libcachesim.LRU(capacity, hashpower=16).process_trace(reader)
        ours = replay_lru(conversations, capacity, counts_runs=False).hit_ratio
        assert ours == pytest.approx(1 - miss_ratio, abs=1e-12)


def test_the_account_of_insertions_and_evictions_closes():
    found = replay_lru(Accesses.of([[1, 2, 3], [1, 2, 4], [5]]), 3)
    assert found.hits.tolist() == [0, 2, 0]
    assert (found.asked_blocks, found.inserted_blocks, found.evicted_blocks) == (7, 5, 2)


def test_the_capacity_for_a_share_of_all_hits():
    curve = hit_curve(Accesses.of([[1], [2], [2], [1], [3], [3]]))
    assert curve.hits.tolist() == [0, 2, 3, 3]
    assert [curve.capacity_for(share) for share in (0.5, 0.95)] == [1, 2]


@settings(max_examples=80, deadline=None)
@given(
    st.lists(
        st.one_of(st.integers(0, 40), st.integers(2**64 - 20, 2**64 - 1), st.integers(0, 60).map(lambda n: n << 40))
    )
)
def test_numbers_are_dense_in_order_of_appearance(names):
    ids, known = dense_ids(np.asarray(names, np.uint64))
    assert [int(name) for name in known] == list(dict.fromkeys(names))
    assert [int(known[block]) for block in ids] == names


def test_numbering_stays_exact_while_the_table_grows():
    random = np.random.default_rng(3)
    names = random.integers(0, 2**64, 60_000, dtype=np.uint64)
    names = np.concatenate([names, names[::-1], random.choice(names, 20_000)])
    ids, known = dense_ids(names)
    assert np.array_equal(known[ids], names)
    assert len(np.unique(known)) == len(known)
    assert np.array_equal(ids[: len(known)], np.arange(len(known)))


def test_a_read_only_view_is_taken_as_it_is():
    names = np.arange(10, dtype=np.uint64)[::2]
    names.flags.writeable = False
    assert dense_ids(names)[0].tolist() == [0, 1, 2, 3, 4]


def test_a_window_keeps_the_numbers():
    log = Accesses.of([[1, 2], [3], [1, 4], [5]], [0.0, 10.0, 10.0, 20.0])
    part = log.between(10.0, 20.0)
    assert [part.request(index).tolist() for index in range(len(part))] == [[2], [0, 3]]
    assert len(log.between(30.0)) == len(log.between(5.0, 1.0)) == 0
    assert log.parents().tolist() == [-1, 0, -1, 0, -1]


def test_accesses_that_do_not_fit_are_refused():
    with pytest.raises(ContractError, match="order of time"):
        Accesses.of([[1], [2]], [1.0, 0.0])
    with pytest.raises(ContractError, match="one time"):
        Accesses.of([[1], [2]], [1.0])


def test_an_empty_log_hits_nothing():
    log = Accesses.of([])
    assert replay_lru(log, 5).hit_ratio == 0.0
    assert hit_curve(log).hit_ratio() == 0.0
