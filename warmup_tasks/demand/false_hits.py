"""What similarity threshold a false-hit budget allows, judged on labelled pairs of questions.

A hit is a pair that is close enough and passes the near-miss gate; a false hit is one whose questions want different
answers; the false-hit share is false hits over hits. Here thresholds are judged and the lowest one within the budget is
chosen. Where the pairs come from (a site's labels, feedback, a benchmark) is not decided here.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from warmup_tasks.demand.embedder import Vectors
from warmup_tasks.demand.near_miss import near_miss
from warmup_tasks.errors import ConfigurationError
from warmup_tasks.parameters import GoldenParameters

FALSE_HIT_BUDGET = 0.01
_BATCH = 256


class LabelledPair(msgspec.Struct, frozen=True):
    """Two questions, and whether one answer serves both."""

    question: str
    other: str
    is_same: bool


class Embeds(Protocol):
    """Gives texts their vectors."""

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return one vector a text."""
        ...


class ScoredPairs(NamedTuple):
    """Pairs by columns: cosine, label, and whether the gate lets the pair pass."""

    cosine: npt.NDArray[np.float64]
    is_same: npt.NDArray[np.bool_]
    passes: npt.NDArray[np.bool_]

    def without_gate(self) -> "ScoredPairs":
        """Return the pairs as cosine alone would have them."""
        return self._replace(passes=np.ones_like(self.passes))


class Judgement(NamedTuple):
    """What a threshold does on labelled pairs. ``recall`` is the share of the pairs with one answer that hit."""

    threshold: float
    hits: int
    false_hits: int
    recall: float

    @property
    def false_hit_share(self) -> float:
        """False hits over hits; 0 where nothing hits."""
        return self.false_hits / self.hits if self.hits else 0.0

    def refusal(self, budget: float = FALSE_HIT_BUDGET) -> str | None:
        """Say why the threshold is rejected, or None: its false-hit share stays within the budget."""
        if self.false_hit_share <= budget:
            return None
        return (
            f"similarity_threshold {self.threshold:g}: {self.false_hits} of {self.hits} hits would give a wrong "
            f"answer, {self.false_hit_share:.1%}; the budget is {budget:.1%}"
        )


def score(pairs: Sequence[LabelledPair], embedder: Embeds) -> ScoredPairs:
    """Return cosine, label and the gate's verdict of each pair."""
    texts = list(dict.fromkeys(text for pair in pairs for text in (pair.question, pair.other)))
    parts = [embedder.embed(texts[start : start + _BATCH]) for start in range(0, len(texts), _BATCH)]
    vectors = dict(zip(texts, np.concatenate(parts), strict=True)) if parts else {}
    cosine = [_cosine(vectors[pair.question], vectors[pair.other]) for pair in pairs]
    passes = [near_miss(pair.question, pair.other) is None for pair in pairs]
    return ScoredPairs(
        np.asarray(cosine, dtype=float), np.asarray([pair.is_same for pair in pairs], bool), np.asarray(passes, bool)
    )


def judge(pairs: ScoredPairs, threshold: float) -> Judgement:
    """Return what a threshold does on scored pairs."""
    is_hit = pairs.passes & (pairs.cosine >= threshold)
    right = int((is_hit & pairs.is_same).sum())
    same = int(pairs.is_same.sum())
    return Judgement(threshold, int(is_hit.sum()), int(is_hit.sum()) - right, right / same if same else 0.0)


def choose_threshold(pairs: ScoredPairs, budget: float = FALSE_HIT_BUDGET) -> Judgement | None:
    """Return the lowest threshold within the parameter's range that keeps the budget on pairs not seen here, too.

    One more false hit than was seen must fit: (false hits + 1) / (hits + 1) ≤ budget, as conformal risk control asks.

    Args:
        pairs: labelled and scored; 1 % needs 99 hits or more.
        budget: upper limit of the false-hit share.

    Returns:
        None where no threshold keeps it: then only equal wordings may share an answer.
    """
    low, high = _range()
    candidates = np.unique(np.concatenate([[low], np.ceil(pairs.cosine[pairs.passes] * 1000) / 1000]))
    for threshold in candidates[(candidates >= low) & (candidates <= high)]:
        judged = judge(pairs, float(threshold))
        if (judged.false_hits + 1) / (judged.hits + 1) <= budget:
            return judged
    return None


def read_pairs(path: str | Path) -> list[LabelledPair]:
    """Return labelled pairs from JSON lines with ``question``, ``other`` and ``is_same``.

    Raises:
        ConfigurationError: the file cannot be read, or a line is no such object; the message names the line.
    """
    try:
        lines = Path(path).read_bytes().splitlines()
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {type(error).__name__}") from None
    pairs = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                pairs.append(msgspec.json.decode(line, type=LabelledPair))
            except msgspec.DecodeError:
                raise ConfigurationError(
                    f'{path}, line {number}: not an object like {{"question": "…", "other": "…", "is_same": true}}'
                ) from None
    return pairs


def _range() -> tuple[float, float]:
    """Return the range of the parameter, from its own definition."""
    bounds = GoldenParameters.model_fields["similarity_threshold"].metadata
    lowest = next(bound.ge for bound in bounds if hasattr(bound, "ge"))
    return float(lowest), float(next(bound.le for bound in bounds if hasattr(bound, "le")))


def _cosine(one: npt.NDArray[np.float32], other: npt.NDArray[np.float32]) -> float:
    length = float(np.linalg.norm(one) * np.linalg.norm(other))
    return float(one @ other) / length if length else 0.0
