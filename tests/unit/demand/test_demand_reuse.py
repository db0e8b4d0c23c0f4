"""The reuse predictor: it sees the past alone, learns what can be learnt, and is not trusted where a rule is better."""

from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.demand.conftest import AS_OF
from warmup_tasks.demand import profile
from warmup_tasks.demand.prefix_tree import PrefixTree, TokenSequence
from warmup_tasks.demand.reuse import Basis, History, predict
from warmup_tasks.demand.reuse.features import NAMES, features_at, uses_between
from warmup_tasks.parameters import GoldenParameters
from warmup_tasks.runs import Run
from warmup_tasks.settings import RunPolicy, RunRequest

STEP = 2


def history_of(prompts, times):
    """Prompts are lists of block numbers; block k of a prompt is two tokens that say its number."""
    sequences = [TokenSequence(np.repeat([*p, -1], STEP).astype(np.int32), 10**6, b"s" * 16, STEP) for p in prompts]
    tree = PrefixTree.build(sequences)
    return History.of_tree(
        tree.parent, tree.start_tokens, tree.end_tokens, tree.leaf, np.asarray(times, np.float64), step_tokens=STEP
    )


def chats(seed=3, sessions=400, span_s=6_000.0):
    """Short-lived and long-lived sessions: one that opens with a long prompt goes on every 90 s or so, others end."""
    random = np.random.default_rng(seed)
    found = []
    for session in range(sessions):
        at, goes_on = random.uniform(0, span_s), session % 4 == 0
        blocks = [0] + [1000 * (session + 1) + place for place in range(12 if goes_on else random.integers(2, 6))]
        for _ in range(random.integers(4, 12) if goes_on else 1):
            found.append((at, list(blocks)))
            at += 90 * random.uniform(0.7, 1.3)
            blocks += [blocks[-1] + 1, blocks[-1] + 2]
    found.sort(key=lambda request: request[0])
    return [blocks for _, blocks in found], [at for at, _ in found]


@pytest.fixture(scope="module")
def busy():
    return history_of(*chats())


@pytest.fixture(scope="module")
def prediction(busy):
    return predict(busy, 4_500.0, 300.0)


def perturbed(history, moment, seed=0):
    """The same tree, but from the moment on everybody asks for something else at other times."""
    stop, random = history.requests_before(moment), np.random.default_rng(seed)
    leaf, times = history.leaf.copy(), history.times_s.copy()
    leaf[stop:] = random.permutation(leaf[stop:])
    times[stop:] = np.sort(random.uniform(moment, moment + 9_999, len(times) - stop))
    return replace(history, leaf=leaf, times_s=times)


def sees_the_future(features, history, moment):
    before, after = features(history, moment), features(perturbed(history, moment), moment)
    return not np.array_equal(before, after, equal_nan=True)


def test_no_feature_sees_the_future(busy):
    for moment in (900.0, 3_000.0, 5_000.0):
        assert not sees_the_future(lambda history, at: features_at(history, at, 300.0)[1], busy, moment)


def test_a_canary_that_sees_the_future_is_caught(busy):
    def canary(history, moment):
        nodes, features = features_at(history, moment, 300.0)
        return np.column_stack([features, uses_between(history, moment, moment + 300.0)[nodes]])

    assert sees_the_future(canary, busy, 3_000.0)


def test_whatever_comes_after_as_of_changes_no_prediction(busy):
    first, second = predict(busy, 3_000.0, 300.0), predict(perturbed(busy, 3_000.0), 3_000.0, 300.0)
    assert np.array_equal(first.nodes, second.nodes)
    assert Basis.MODEL in first.scores
    for basis in first.scores:
        assert np.array_equal(first.scores[basis], second.scores[basis])
    assert first.saved_shares() == second.saved_shares()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=9), min_size=2, max_size=14), st.data())
def test_where_the_tree_is_cut_later_changes_no_feature(paths, data):
    """Features of each block from a tree that knows later prompts equal those from a tree that does not."""
    stop = data.draw(st.integers(1, len(paths) - 1))
    whole, past = history_of(paths, range(len(paths))), history_of(paths[:stop], range(stop))

    def by_block(history):
        nodes, features = features_at(history, stop - 0.5, 4.0)
        row_of = dict(zip(nodes.tolist(), features, strict=True))
        found = {}
        for request in range(stop):
            node = int(history.leaf[request])
            while node >= 0:
                for end in range(history.start_tokens[node] + STEP, history.end_tokens[node] + 1, STEP):
                    found[tuple(paths[request][: end // STEP])] = row_of[node]
                node = int(history.parent[node])
        return found

    # how deep a node lies is told by its end, the one value that a later cut may lower
    kept = [place for place, name in enumerate(NAMES) if name not in {"depth_log2", "share_of_parent", "sibling_age_s"}]
    early, late = by_block(past), by_block(whole)
    assert early.keys() == late.keys()
    for path, row in early.items():
        assert np.array_equal(row[kept], late[path][kept], equal_nan=True)


def test_features_of_a_log_told_by_hand():
    history = history_of([[1, 2], [9], [1, 2, 3, 4]], [0.0, 40.0, 60.0])
    nodes, features = features_at(history, 100.0, 50.0)
    deepest = features[nodes.tolist().index(int(history.leaf[2]))]
    root = features[nodes.tolist().index(int(history.leaf[0]))]
    names = {name: place for place, name in enumerate(NAMES)}

    def said(row, *wanted):
        return [row[names[name]] for name in wanted]

    assert said(root, "uses", "age_s", "first_age_s", "last_gap_s", "requests_since") == [2, 40, 100, 60, 0]
    assert said(root, "turn", "turn_gap_s", "growth_tokens", "prompt_tokens", "sessions") == [1, 60, 4, 8, 1]
    assert said(deepest, "uses", "steps_below_log2", "session_turns", "session_gap_s") == [1, 0, 2, 60]
    assert np.isnan(deepest[names["hour"]])


def test_what_can_be_learnt_is_learnt(prediction):
    shares = prediction.saved_shares(budget_tokens=200)
    assert prediction.basis(200) is Basis.MODEL
    missed = {basis: 1 - share for basis, share in shares.items()}
    assert missed[Basis.MODEL] < 0.75 * min(missed[Basis.COUNT], missed[Basis.RECENCY])


def test_scores_never_rise_on_the_way_down(busy, prediction):
    for basis in prediction.scores:
        scores = prediction.by_node(busy, basis)
        inner = np.flatnonzero(busy.parent >= 0)
        assert (scores[inner] <= scores[busy.parent[inner]]).all()


def test_the_model_is_not_taken_where_a_rule_is_better_or_there_is_nothing_to_learn(busy, prediction):
    worse = [(sample, {**scores, Basis.MODEL: -scores[Basis.RECENCY]}) for sample, scores in prediction.backtests]
    shares = replace(prediction, backtests=worse).saved_shares(400)
    chosen = replace(prediction, backtests=worse).basis(400)
    assert chosen is not Basis.MODEL
    assert shares[chosen] == max(shares.values())
    short = predict(busy, 500.0, 300.0)
    assert short.basis() is Basis.COUNT
    assert short.saved_shares() == {}
    assert short.calibration() is None


def test_a_rule_that_was_better_in_one_window_alone_does_not_count(prediction):
    assert len(prediction.backtests) == 6
    (sample, scores), *others = prediction.backtests
    once = {**scores, Basis.MODEL: -scores[Basis.RECENCY]}
    assert replace(prediction, backtests=[(sample, once), *others]).basis(400) is Basis.MODEL


def test_no_window_is_judged_by_a_model_that_knows_its_end(busy):
    """A window that was asked for in part when the model learnt would tell how it ends."""
    moment, window = 4_500.0, 300.0
    begins = moment - window * 2  # the third newest window: the first fold is judged on it and later ones
    future = perturbed(busy, begins)
    before = predict(busy, moment, window).backtests[2]
    after = predict(future, moment, window).backtests[2]
    assert np.array_equal(before[0].features, after[0].features, equal_nan=True)
    assert not np.array_equal(before[0].is_used, after[0].is_used)
    for basis in before[1]:
        assert np.array_equal(before[1][basis], after[1][basis])


def test_chances_are_what_comes_true(prediction):
    assert 0.7 < prediction.calibration() < 1.4
    empty = predict(history_of([], []), 10.0, 5.0)
    assert len(empty.nodes) == 0


def night_of(lake, fleet, replicas, engine, **parameters):
    run = Run.of(RunRequest(as_of=AS_OF), RunPolicy(holdout_share=0.0, horizon_s=600), GoldenParameters(**parameters))
    ref, summary = profile(lake, run, fleet, replicas, engine)
    return lake.read(ref, "nodes").to_pylist(), lake.read(ref, "reuse").to_pylist(), summary


def publish_chats(ask, publish, later=()):
    prompts, times = chats()
    rows = [
        ask(" ".join(f"w{block}" for block in np.repeat(blocks, 4).tolist()), age_s=6_000.0 - at)
        for blocks, at in zip(prompts, times, strict=True)
        if at < 6_000.0
    ]
    publish([*rows, *later])


def test_the_night_uses_the_prediction_where_it_is_better(lake, fleet, replicas, engine, ask, publish):
    replicas = [state.model_copy(update={"capacity_tokens": 2_000}) for state in replicas]
    publish_chats(ask, publish)
    nodes, reuse, summary = night_of(lake, fleet, replicas, engine)
    assert summary["reuse"]["m"]["basis"] == Basis.MODEL
    assert {node["policy"] for node in nodes} == {Basis.MODEL}
    assert [row["node"] for row in reuse] == [node["node"] for node in nodes]
    assert all(0 <= row["chance"] <= 1 for row in reuse)
    assert any(node["uses"] == 1 for node in nodes), "a session's newest turn is a candidate though asked for once"
    by_number = {node["node"]: node for node in nodes}
    assert all(
        node["expected_uses"] <= by_number[node["parent"]]["expected_uses"] for node in nodes if node["parent"] >= 0
    )
    assert night_of(lake, fleet, replicas, engine)[:2] == (nodes, reuse)
    static, no_reuse, told = night_of(lake, fleet, replicas, engine, prefetch_strategy="static")
    assert {node["policy"] for node in static} == {"static"}
    assert (no_reuse, told["reuse"]) == ([], {})


def test_no_night_sees_what_comes_after_as_of(lake, fleet, replicas, engine, ask, publish, tmp_path):
    later = [ask(f"w0 w0 w0 w0 later {n}", age_s=-float(n)) for n in range(50)]
    publish_chats(ask, publish)
    before = night_of(lake, fleet, replicas, engine)
    publish_chats(ask, publish, [row | {"time": AS_OF + timedelta(seconds=n)} for n, row in enumerate(later)])
    assert night_of(lake, fleet, replicas, engine)[:2] == before[:2]


def test_a_short_log_keeps_the_present_estimates(lake, fleet, replicas, engine, ask, publish):
    publish([ask("a b c d e f g h", age_s=100.0 + n) for n in range(5)])
    nodes, reuse, summary = night_of(lake, fleet, replicas, engine)
    assert summary["reuse"]["m"]["basis"] == "log too short"
    assert reuse == []
    assert {node["policy"] for node in nodes} <= {"static", "dynamic"}
