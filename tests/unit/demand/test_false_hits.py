"""Thresholds under a false-hit budget: judged, refused, chosen, and what is no file of pairs."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from warmup_tasks.cli import app
from warmup_tasks.demand.embedder import HashingEmbedder
from warmup_tasks.demand.false_hits import LabelledPair, ScoredPairs, choose_threshold, judge, read_pairs, score
from warmup_tasks.errors import ConfigurationError

FIELD_CASE = [
    LabelledPair("1+1?", "21+1?", False),
    LabelledPair("1+1?", "Tell me a joke", False),
    LabelledPair("Tell me a joke", "tell me a joke!", True),
    LabelledPair("21+1?", "Tell me a joke", False),
]


def pairs(same, different):
    """Pairs that all pass the gate, by their cosines."""
    cosine = np.asarray([*same, *different], dtype=float)
    return ScoredPairs(cosine, np.arange(len(cosine)) < len(same), np.ones(len(cosine), dtype=bool))


def test_a_loose_threshold_is_rejected_by_its_false_hits():
    scored = score(FIELD_CASE, HashingEmbedder()).without_gate()
    loose = judge(scored, 0.0)
    assert (loose.hits, loose.false_hits) == (4, 3)
    assert "3 of 4 hits would give a wrong answer, 75.0%; the budget is 1.0%" in loose.refusal()
    assert judge(scored, 0.99).refusal() is None


def test_the_gate_keeps_them_apart_at_any_threshold():
    found = judge(score(FIELD_CASE, HashingEmbedder()), 0.0)
    assert (found.false_hits, found.recall) == (0, 1.0)


def test_the_lowest_threshold_within_the_budget_is_chosen():
    rising = np.linspace(0.7, 0.99, 250)
    chosen = choose_threshold(pairs(rising, [0.75, 0.8]))
    assert chosen.false_hits == 1
    assert 0.75 < chosen.threshold <= 0.752
    assert choose_threshold(pairs(rising, [])).threshold == 0.7
    assert chosen.refusal() is None


def test_one_more_false_hit_than_seen_must_fit():
    assert choose_threshold(pairs([0.9] * 98, [])) is None
    assert choose_threshold(pairs([0.9] * 99, [])).hits == 99
    assert choose_threshold(pairs([0.9] * 98, []), budget=0.02).hits == 98


def test_where_no_threshold_keeps_the_budget_none_is_chosen():
    assert choose_threshold(pairs([0.9] * 300, [0.95] * 10)) is None
    assert choose_threshold(score([], HashingEmbedder())) is None


def test_a_threshold_stays_in_the_parameter_s_range():
    assert choose_threshold(pairs([0.3] * 300 + [0.8] * 200, [])).threshold == 0.7
    assert choose_threshold(pairs([1.0] * 300, [0.9995] * 50)) is None


def test_pairs_are_read_line_by_line_and_the_bad_one_is_named_without_its_text(tmp_path):
    good = tmp_path / "pairs.jsonl"
    good.write_text(
        '{"question": "a", "other": "b", "is_same": true}\n\n{"question": "c", "other": "d", "is_same": false}\n'
    )
    assert read_pairs(good) == [LabelledPair("a", "b", True), LabelledPair("c", "d", False)]
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"question": "a", "other": "b", "is_same": true}\n{"question": "secret", "other": 3}\n')
    with pytest.raises(ConfigurationError, match="line 2") as refused:
        read_pairs(bad)
    assert "secret" not in str(refused.value)
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_pairs(tmp_path / "none.jsonl")


def test_the_command_chooses_and_refuses(tmp_path):
    lines = [{"question": f"open door {n}", "other": f"please open door {n}", "is_same": True} for n in range(120)]
    lines.append({"question": "open door 7", "other": "close door 7", "is_same": False})
    path = tmp_path / "pairs.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    done = CliRunner().invoke(app, ["threshold", str(path), "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["similarity_threshold"] == 0.7
    assert json.loads(done.stdout)["false_hits"] == 0
    wrong = [{"question": f"alpha {n}", "other": f"Alpha {n}!", "is_same": False} for n in range(9)]
    path.write_text("\n".join(map(json.dumps, lines + wrong)))
    for words in (["--judge", "0.8"], []):
        refused = CliRunner().invoke(app, ["threshold", str(path), *words])
        assert refused.exit_code == 1
    assert CliRunner().invoke(app, ["threshold", str(path), "--judge", "0.8", "--budget", "0.2"]).exit_code == 0
