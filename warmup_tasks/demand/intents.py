"""Frequent questions with one answer: exact wording after normalisation, then close wording past a near-miss gate.

An intent lives within one tenant, model, adapter, system prompt and tool set (spec 1.2). A wrong merge gives somebody a
wrong answer, so the gate of ``near_miss.py`` stands beside the cosine; what threshold a false-hit budget allows is
chosen in ``false_hits.py``.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from warmup_tasks.demand.embedder import HashingEmbedder
from warmup_tasks.demand.near_miss import near_miss
from warmup_tasks.identity import digest

MAX_QUESTION_CHARACTERS = 1000
"""A longer text is a document; the default response of the exact prompt serves it better than an intent."""

MAX_WORDINGS = 4000
"""Wordings of one scope that are compared with each other, the most used first; rarer ones stay for themselves."""


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
    """Let each wording join the closest more used intent that is close enough and passes the gate with it."""
    ordered = sorted(wordings.items(), key=lambda item: (-item[1].uses, item[0]))
    compared, alone = ordered[:MAX_WORDINGS], ordered[MAX_WORDINGS:]
    vectors = embedder.embed([text for text, _ in compared])
    leading: list[int] = []
    for row, (_, intent) in enumerate(compared):
        cosines = vectors[leading] @ vectors[row]
        close = [
            leading[place] for place in np.argsort(-cosines, kind="stable") if cosines[place] >= similarity_threshold
        ]
        lead = next((lead for lead in close if not near_miss(compared[lead][1].canonical, intent.canonical)), None)
        if lead is None:
            leading.append(row)
        else:
            compared[lead][1].members += intent.members
            compared[lead][1].uses += intent.uses
    return [compared[row][1] for row in leading] + [intent for _, intent in alone]


def _fold(text: str) -> str:
    return " ".join(re.sub(r"[^\w\s'’+*/=<>%$€£.,-]", " ", text).split()).strip(" .,")  # noqa: RUF001 — as above
