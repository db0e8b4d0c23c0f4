"""When two answers are one: log-probabilities within a tolerance, near ties, and nothing to compare."""

import pytest

from warmup_tasks.engines.canary import Answer
from warmup_tasks.validation.answers import answer_of, compare, top_to_json

COLD = Answer(("a", "b", "c"), (-0.1, -0.2, -0.3), ({"a": -0.1}, {"b": -0.2}, {"c": -0.3, "d": -0.31}))


def test_the_same_answer_is_equal() -> None:
    assert compare(COLD, COLD, 0.05) == (True, 3, 0.0)


@pytest.mark.parametrize(("shift", "is_equal"), [(0.04, True), (0.06, False)])
def test_equal_tokens_need_log_probabilities_within_the_tolerance(shift: float, is_equal: bool) -> None:
    warm = Answer(COLD.tokens, tuple(value - shift for value in COLD.logprobs))

    assert compare(COLD, warm, 0.05).is_equal is is_equal


@pytest.mark.parametrize(("of_twin", "is_equal"), [(-0.33, True), (-0.36, False)])
def test_a_near_tie_may_fall_the_other_way(of_twin: float, is_equal: bool) -> None:
    warm = Answer(("a", "b", "d"), (-0.1, -0.2, -0.3), ({}, {}, {"d": -0.3, "c": of_twin}))

    assert compare(COLD, warm, 0.05).is_equal is is_equal


def test_after_a_near_tie_nothing_more_is_compared() -> None:
    warm = Answer(("a", "x", "y"), (-0.1, -0.2, -9.0), ({}, {"x": -0.2, "b": -0.21}, {}))

    assert compare(COLD, warm, 0.05) == (True, 1, 0.0)


def test_a_token_that_warm_never_considered_is_another_answer() -> None:
    warm = Answer(("a", "x", "c"), (-0.1, -0.2, -0.3), ({}, {"x": -0.2}, {}))

    assert compare(COLD, warm, 0.05).is_equal is False


def test_an_answer_that_ends_earlier_is_another_answer() -> None:
    assert compare(COLD, Answer(COLD.tokens[:2], COLD.logprobs[:2]), 0.05).is_equal is False


def test_nothing_to_compare_is_neither_equal_nor_different() -> None:
    assert compare(COLD, Answer((), ()), 0.05).is_equal is None
    assert compare(Answer((), ()), COLD, 0.05).is_equal is None


def test_an_answer_survives_being_stored() -> None:
    assert answer_of(list(COLD.tokens), list(COLD.logprobs), top_to_json(COLD)) == COLD
