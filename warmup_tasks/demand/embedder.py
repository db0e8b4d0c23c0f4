"""The default embedder: signed feature hashing of words, their synonyms and characters, no model and no download.

Here live the embedder, its identity and the domain lexicon that normalises questions before embedding (spec 1.2). The
vectors carry wording and what ``words.py`` knows of synonyms, not meaning: paraphrases in other words stay apart, which
is the safe side for an answer cache. No storing; who writes vectors checks them with :func:`check_vectors` first.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import sqrt

import numpy as np
import numpy.typing as npt
import xxhash

from warmup_tasks.demand.words import head, knowledge, stem, words
from warmup_tasks.errors import ConfigurationError, RejectItemError
from warmup_tasks.identity import EmbedderIdentity, digest
from warmup_tasks.items import Reason

EMBEDDER = "feature-hashing"
REVISION = "2"
DIMENSIONS = 384

Vectors = npt.NDArray[np.float32]

_WEIGHT_WORD, _WEIGHT_CHARACTERS, _WEIGHT_FUNCTION_WORD = 1.0, 0.1, 0.05
_CHARACTERS = 3


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
            every = words(self.lexicon.normalise(text))
            stems = [stem(word) for word in every if word not in knowledge().function_words]
            for word, count in Counter(map(head, stems)).items():
                _add(vector, f"w:{word}", _WEIGHT_WORD * sqrt(count))
            for gram, count in Counter(_characters(stems)).items():
                _add(vector, f"c:{gram}", _WEIGHT_CHARACTERS * sqrt(count))
            for word in sorted(knowledge().function_words.intersection(every)):
                _add(vector, f"f:{word}", _WEIGHT_FUNCTION_WORD)
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


def _characters(stems: Iterable[str]) -> Iterable[str]:
    """Yield the groups of letters of each word: misspellings stay close."""
    for word in stems:
        framed = f"<{word}>"
        yield from (framed[i : i + _CHARACTERS] for i in range(len(framed) - _CHARACTERS + 1))


def _add(vector: npt.NDArray[np.float64], feature: str, weight: float) -> None:
    place, sign = _hashed(feature)
    vector[place] += sign * weight


@lru_cache(maxsize=262_144)
def _hashed(feature: str) -> tuple[int, int]:
    value = xxhash.xxh3_64_intdigest(feature.encode("utf-8", "surrogatepass"))
    return value % DIMENSIONS, 1 if value >> 63 else -1
