"""Are two answers the same? The one comparison behind twins, probes and fingerprints (spec 6.5c).

Pure. Greedy answers of one model may part at near ties, since a cached prefix is summed in another order; so tokens are
compared with a tolerance on log-probabilities, defined exactly below.
"""

import json
from collections.abc import Sequence
from typing import NamedTuple

from warmup_tasks.engines.canary import Answer


class Comparison(NamedTuple):
    """What comparing found. ``is_equal`` None: there was nothing to compare."""

    is_equal: bool | None
    common_tokens: int
    mean_difference: float | None


def compare(cold: Answer, warm: Answer, tolerance: float) -> Comparison:
    """Compare a warm answer with its cold twin.

    They are equal when both hold:

    1. over the common leading tokens, the mean absolute difference of log-probabilities is at most ``tolerance``;
    2. they never part; or where they part first, the twin's token stands among the warm answer's top log-probabilities
       at most ``tolerance`` below the token that the warm answer took. What follows that place is not compared, since
       it answers another text. An answer that merely ends earlier is a different answer.

    Args:
        cold: the twin's answer.
        warm: the probe's answer.
        tolerance: in nats.
    """
    if not cold.tokens or not warm.tokens:
        return Comparison(None, 0, None)
    common = _common(cold.tokens, warm.tokens)
    differences = [abs(a - b) for a, b in zip(cold.logprobs[:common], warm.logprobs[:common], strict=False)]
    mean = sum(differences) / len(differences) if differences else None
    if mean is not None and mean > tolerance:
        return Comparison(False, common, mean)
    if common == len(cold.tokens) == len(warm.tokens):
        return Comparison(True, common, mean)
    return Comparison(_is_near_tie(cold, warm, common, tolerance), common, mean)


def top_to_json(answer: Answer) -> str:
    """Return an answer's top log-probabilities as JSON, for :class:`warmup_tasks.items.TwinResult`."""
    return json.dumps(list(answer.top_logprobs))


def answer_of(tokens: Sequence[str], logprobs: Sequence[float], top_json: str = "") -> Answer:
    """Return an answer as it was stored."""
    return Answer(tuple(tokens), tuple(logprobs), tuple(json.loads(top_json)) if top_json else ())


def _common(left: Sequence[str], right: Sequence[str]) -> int:
    length = min(len(left), len(right))
    return next((index for index in range(length) if left[index] != right[index]), length)


def _is_near_tie(cold: Answer, warm: Answer, place: int, tolerance: float) -> bool:
    if place >= len(cold.tokens) or place >= len(warm.tokens):
        return False
    if place >= len(warm.top_logprobs) or place >= len(warm.logprobs):
        return False
    of_twin = warm.top_logprobs[place].get(cold.tokens[place])
    return of_twin is not None and warm.logprobs[place] - of_twin <= tolerance
