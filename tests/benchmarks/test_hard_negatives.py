"""The generator of hard negatives: the same seed gives the same ones, each changes something, by a rule of its own."""

import random
from collections import Counter
from pathlib import Path

from tests.benchmarks import hard_negatives as made
from tests.benchmarks.hard_negatives import RULES, hard_negatives

PAIRS = [
    (f"You can load {n} files from the archive with `load_{n}()` before the upload.",
     f"With `load_{n}()`, {n} files can be loaded from the archive before the upload is done.")
    for n in range(2, 40)
]  # fmt: skip


def test_the_same_seed_gives_the_same_negatives_and_another_seed_others():
    first = hard_negatives(PAIRS, 60, seed=3)
    assert first == hard_negatives(PAIRS, 60, seed=3)
    assert first != hard_negatives(PAIRS, 60, seed=4)
    assert len({(negative.question, negative.other) for negative in first}) == 60


def test_every_rule_has_its_turn_and_changes_the_text():
    found = hard_negatives(PAIRS, 120, seed=3)
    assert set(Counter(negative.rule for negative in found)) == set(RULES)
    assert all(negative.other not in (negative.question, "") for negative in found)


def test_each_rule_by_hand():
    draw = random.Random(0)
    assert RULES["negation"]("The page is there.", draw, []) in ("The page is not there.", "The page is never there.")
    assert RULES["negation"]("I can go", draw, []) == "I cannot go"
    assert RULES["antonym"]("Enable the feature", draw, []) == "Disable the feature"
    assert RULES["number"]("within 3 days", draw, []) != "within 3 days"
    assert RULES["entity"]("call `map` now", draw, ["`map`", "`filter`"]) == "call `filter` now"
    assert RULES["direction"]("copy the file to the folder", draw, []) == "copy the folder to the file"
    assert RULES["direction"]("You can refer to the guide", draw, []) is None


def test_the_generator_knows_nothing_of_the_gate():
    source = Path(made.__file__ or "").read_text(encoding="utf-8")
    assert "warmup_tasks" not in source
