"""Frequent questions with one answer: exact wording after normalisation, then close wording past a near-miss gate.

An intent lives within one tenant, model, adapter, system prompt and tool set (spec 1.2). A wrong merge gives somebody a
wrong answer, so whatever the cosine says, numbers, negations, opposites and content words must agree.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from warmup_tasks.demand.embedder import HashingEmbedder, Vectors, content_words
from warmup_tasks.identity import digest

MAX_QUESTION_CHARACTERS = 1000
"""A longer text is a document; the default response of the exact prompt serves it better than an intent."""

_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_NUMBER_WORDS = frozenset(
    re.findall(
        r"\w+",
        "zero one two three four five six seven eight nine ten eleven twelve twenty thirty forty fifty hundred "
        "thousand million half twice first second third",
    )
)
_NEGATIONS = frozenset(re.findall(r"\w+", "not no never none neither nor without cannot cant dont doesnt isnt wont"))
_NEGATED = re.compile(r"n['’]t\b")  # noqa: RUF001 — people type the typographic apostrophe
_OPPOSITES = (
    ("enable", "disable"), ("start", "stop"), ("on", "off"), ("open", "close"), ("add", "remove"), ("create", "delete"),
    ("install", "uninstall"), ("increase", "decrease"), ("allow", "deny"), ("allow", "block"), ("lock", "unlock"),
    ("before", "after"), ("first", "last"), ("min", "max"), ("minimum", "maximum"), ("up", "down"),
    ("import", "export"), ("upload", "download"), ("login", "logout"), ("subscribe", "unsubscribe"), ("buy", "sell"),
    ("accept", "reject"), ("include", "exclude"), ("connect", "disconnect"), ("more", "less"),
    ("upgrade", "downgrade"), ("activate", "deactivate"), ("ascending", "descending"),
)  # fmt: skip
_SIDES = {word: (index, side) for index, pair in enumerate(_OPPOSITES) for side, word in enumerate(pair)}
_ENDINGS = re.compile(r"(?:ing|ed|es|s)$")


class QuestionUse(NamedTuple):
    """One distinct question; ``scope`` names tenant, model, adapter, system prompt and tools."""

    position: int
    scope: str
    text: str
    uses: int


@dataclass(slots=True)
class Intent:
    """Questions with one answer; the first member is the canonical question, the most used wording."""

    scope: str
    canonical: str = field(repr=False)
    members: list[int]
    uses: int

    @property
    def intent_hash(self) -> str:
        """Return the hash over the scope and the canonical question (spec 1.2)."""
        return digest({"scope": self.scope, "question": self.canonical})


@dataclass(frozen=True, slots=True)
class _Gate:
    numbers: tuple[str, ...]
    negations: int
    sides: frozenset[tuple[int, int]]
    content: tuple[str, ...]

    @classmethod
    def of(cls, text: str) -> "_Gate":
        words = re.findall(r"[\w'’]+", text)  # noqa: RUF001 — as above
        numbers = tuple(_NUMBER.findall(text)) + tuple(word for word in words if word in _NUMBER_WORDS)
        negations = sum(word in _NEGATIONS for word in words) + len(_NEGATED.findall(text))
        stems = [_stem(word) for word in content_words(text)]
        sides = frozenset(_SIDES[word] for word in {*words, *stems} if word in _SIDES)
        return cls(numbers, negations % 2, sides, tuple(stems))


def is_near_miss(one: str, other: str) -> bool:
    """Say whether two normalised questions must not share an answer, however close their vectors are.

    They must not when a number, a negation, a side of a pair of opposites, a content word or the order of the content
    words differs ("3 days"/"30 days", "enable X"/"disable X").
    """
    return _Gate.of(one) != _Gate.of(other)


def intents(
    asked: Iterable[QuestionUse], embedder: HashingEmbedder, similarity_threshold: float, min_uses: int
) -> list[Intent]:
    """Return the intents asked at least ``min_uses`` times, sorted by scope and canonical question.

    Args:
        asked: the distinct questions; texts of more than 1,000 characters are left out.
        embedder: gives the vectors; its lexicon normalises the wording.
        similarity_threshold: cosine from which on two wordings may be one intent.
        min_uses: over all wordings together.
    """
    scopes: dict[str, dict[str, Intent]] = {}
    for question in sorted(asked, key=lambda q: (q.scope, -q.uses, q.text, q.position)):
        if len(question.text) > MAX_QUESTION_CHARACTERS:
            continue
        wordings = scopes.setdefault(question.scope, {})
        wording = _fold(embedder.lexicon.normalise(question.text))
        if wording in wordings:
            wordings[wording].members.append(question.position)
            wordings[wording].uses += question.uses
        elif wording:
            wordings[wording] = Intent(question.scope, question.text, [question.position], question.uses)
    found = [intent for wordings in scopes.values() for intent in _merge(wordings, embedder, similarity_threshold)]
    return sorted((i for i in found if i.uses >= min_uses), key=lambda i: (i.scope, i.canonical))


def _merge(wordings: dict[str, Intent], embedder: HashingEmbedder, similarity_threshold: float) -> list[Intent]:
    """Let each wording join the most used intent that passes the gate with it and is close enough."""
    alike: dict[_Gate, list[tuple[str, Intent]]] = {}
    for text, intent in sorted(wordings.items(), key=lambda item: (-item[1].uses, item[0])):
        alike.setdefault(_Gate.of(text), []).append((text, intent))
    leaders: list[Intent] = []
    for group in alike.values():
        vectors = embedder.embed([text for text, _ in group]) if len(group) > 1 else None
        leading: list[int] = []
        for row, (_, intent) in enumerate(group):
            close = (
                lead for lead in leading if vectors is not None and _cosine(vectors, lead, row) >= similarity_threshold
            )
            lead = next(close, None)
            if lead is None:
                leading.append(row)
                leaders.append(intent)
            else:
                group[lead][1].members += intent.members
                group[lead][1].uses += intent.uses
    return leaders


def _cosine(vectors: Vectors, one: int, other: int) -> float:
    return float(vectors[one] @ vectors[other])


def _fold(text: str) -> str:
    return " ".join(re.sub(r"[^\w\s'’+*/=<>%$€£.,-]", " ", text).split()).strip(" .,")  # noqa: RUF001 — as above


def _stem(word: str) -> str:
    return _ENDINGS.sub("", word) if len(word) > 4 else word
