"""The default embedder: signed feature hashing of words and characters, no model and no download.

Here live the embedder, its identity and the domain lexicon that normalises questions before embedding (spec 1.2). The
vectors carry wording, not meaning: paraphrases in other words stay apart, which is the safe side for an answer cache.
No storing; who writes vectors checks them with :func:`check_vectors` first.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
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
        vectors = np.zeros((len(texts), DIMENSIONS))
        for vector, text in zip(vectors, texts, strict=True):
            words = _WORD.findall(self.lexicon.normalise(text))
            for word, count in Counter(words).items():
                places, weights = _word_features(word)
                np.add.at(vector, places, weights * sqrt(count))
            for pair, count in Counter(pairwise(words)).items():
                place, sign = _hashed(f"p:{pair[0]} {pair[1]}")
                vector[place] += sign * _WEIGHT_PAIR * sqrt(count)
        norms = np.linalg.norm(vectors, axis=1, keepdims=True)
        np.divide(vectors, norms, out=vectors, where=norms > 0)
        return vectors.astype(np.float32)


def check_vectors(vectors: Vectors, identity: EmbedderIdentity) -> None:
    """Raise ``RejectItemError`` (``DIMENSION_MISMATCH``) unless the vectors have the identity's dimension."""
    if vectors.ndim != 2 or vectors.shape[1] != identity.dimensions:
        got = vectors.shape[-1] if vectors.ndim else 0
        raise RejectItemError(
            Reason.DIMENSION_MISMATCH, f"{identity.embedder} has {identity.dimensions} dimensions, got {got}"
        )


@lru_cache(maxsize=65_536)
def _word_features(word: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Return places and signed weights of a word and its characters; function words have no characters."""
    is_function_word = word in _FUNCTION_WORDS
    features = [(f"w:{word}", _WEIGHT_FUNCTION_WORD if is_function_word else _WEIGHT_WORD)]
    if not is_function_word:
        framed = f"<{word}>"
        grams = (framed[i : i + n] for n in _CHARACTERS for i in range(len(framed) - n + 1))
        features += [(f"c:{gram}", _WEIGHT_CHARACTERS) for gram in grams]
    hashed = [(_hashed(feature), weight) for feature, weight in features]
    places = np.asarray([place for (place, _), _ in hashed], dtype=np.int64)
    return places, np.asarray([sign * weight for (_, sign), weight in hashed])


def _hashed(feature: str) -> tuple[int, int]:
    value = xxhash.xxh3_64_intdigest(feature.encode("utf-8", "surrogatepass"))
    return value % DIMENSIONS, 1 if value >> 63 else -1
