"""The default embedder: signed feature hashing of words and characters, no model and no download.

Here live the embedder, its identity and the domain lexicon that normalises questions before embedding (spec 1.2). The
vectors carry wording, not meaning: paraphrases in other words stay apart, which is the safe side for an answer cache.
No storing; who writes vectors checks them with :func:`check_vectors` first.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import sqrt

import numpy as np
import numpy.typing as npt
import xxhash

from warmup_tasks.errors import ConfigurationError, RejectItemError
from warmup_tasks.identity import EmbedderIdentity, digest
from warmup_tasks.items import Reason

EMBEDDER = "feature-hashing"
REVISION = "1"
DIMENSIONS = 384

Vectors = npt.NDArray[np.float32]

_WORD = re.compile(r"\w+")
_FUNCTION_WORDS = frozenset(
    _WORD.findall(
        "a an and are as at be by can could do does for from had has have how i in is it its may me my of on or our "
        "please shall should so that the their them then there these they this to us was we were what when where which "
        "who why will with would you your"
    )
)
_WEIGHT_WORD, _WEIGHT_FUNCTION_WORD, _WEIGHT_PAIR, _WEIGHT_CHARACTERS = 1.0, 0.2, 0.4, 0.25
_CHARACTERS = (3, 4)


@dataclass(frozen=True, slots=True)
class Lexicon:
    """The domain lexicon: term → the term that stands for it, both in lower case. The version follows the terms."""

    terms: Mapping[str, str] = field(default_factory=dict)

    @property
    def version(self) -> str:
        """Return the lexicon's version: ``none`` when it is empty, else a digest of its terms."""
        return digest(dict(self.terms))[:12] if self.terms else "none"

    def normalise(self, text: str) -> str:
        """Return the text in lower case, white space folded, each known term replaced by its canonical one."""
        folded = " ".join(text.lower().split())
        if not self.terms:
            return folded
        longest_first = sorted(self.terms, key=lambda term: (-len(term), term))
        pattern = re.compile("|".join(rf"(?<!\w){re.escape(term)}(?!\w)" for term in longest_first))
        return pattern.sub(lambda match: self.terms[match.group()], folded)


NO_LEXICON = Lexicon()


def default_embedder_identity(lexicon: Lexicon = NO_LEXICON) -> EmbedderIdentity:
    """Return the identity of the embedder in this module, with the lexicon's version."""
    return EmbedderIdentity(
        embedder=EMBEDDER, revision=REVISION, dimensions=DIMENSIONS, lexicon_version=lexicon.version
    )


def content_words(text: str) -> list[str]:
    """Return the words of a normalised text that carry content, in order; function words are left out."""
    return [word for word in _WORD.findall(text) if word not in _FUNCTION_WORDS]


class HashingEmbedder:
    """Texts to unit vectors of 384 numbers; the same text gives the same vector on every machine.

    Raises:
        ConfigurationError: the identity asks for another embedder, revision, dimension or lexicon version than these.
    """

    def __init__(self, identity: EmbedderIdentity | None = None, lexicon: Lexicon = NO_LEXICON) -> None:
        own = default_embedder_identity(lexicon)
        if identity is not None and identity != own:
            raise ConfigurationError(
                f"embedder: the built-in one is {own.model_dump()}, the fleet file asks for {identity.model_dump()}"
            )
        self.identity = own
        self.lexicon = lexicon

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return one L2-normalised vector a text, shape (texts, 384), float32. A text without words is all zeros."""
        vectors = np.zeros((len(texts), DIMENSIONS), dtype=np.float32)
        for row, text in enumerate(texts):
            for feature, weight in _features(self.lexicon.normalise(text)).items():
                hashed = xxhash.xxh3_64_intdigest(feature)
                vectors[row, hashed % DIMENSIONS] += weight if hashed >> 63 else -weight
        norms = np.linalg.norm(vectors, axis=1, keepdims=True)
        np.divide(vectors, norms, out=vectors, where=norms > 0)
        return vectors


def check_vectors(vectors: Vectors, identity: EmbedderIdentity) -> None:
    """Raise ``RejectItemError`` (``DIMENSION_MISMATCH``) unless the vectors have the identity's dimension."""
    if vectors.ndim != 2 or vectors.shape[1] != identity.dimensions:
        got = vectors.shape[-1] if vectors.ndim else 0
        raise RejectItemError(
            Reason.DIMENSION_MISMATCH, f"{identity.embedder} has {identity.dimensions} dimensions, got {got}"
        )


def _features(text: str) -> dict[bytes, float]:
    words = _WORD.findall(text)
    counts: Counter[tuple[str, str]] = Counter(("w", word) for word in words)
    counts.update(("p", f"{first} {second}") for first, second in pairwise(words))
    for word in (f"<{word}>" for word in words if word not in _FUNCTION_WORDS):
        counts.update(("c", word[i : i + n]) for n in _CHARACTERS for i in range(len(word) - n + 1))
    return {f"{kind}:{text}".encode(): _weight(kind, text) * sqrt(count) for (kind, text), count in counts.items()}


def _weight(kind: str, text: str) -> float:
    if kind == "w":
        return _WEIGHT_FUNCTION_WORD if text in _FUNCTION_WORDS else _WEIGHT_WORD
    return _WEIGHT_PAIR if kind == "p" else _WEIGHT_CHARACTERS
