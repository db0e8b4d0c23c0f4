"""What this room knows of English: function words, stems, synonyms, opposites, words that exclude each other.

The lists lie in ``include/words.yaml``. No judgement here: what follows from two sides of an opposition is decided in
``near_miss.py``, what a synonym weighs in ``embedder.py``.
"""

import re
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import TypeVar

import yaml

from warmup_tasks.resources import include_path

WORD = re.compile(r"\w+(?:['’]\w+)?")  # noqa: RUF001 — people type the typographic apostrophe
_SUFFIXES = (
    ("ization", "iz"), ("isation", "iz"), ("ising", "iz"), ("ised", "iz"), ("ises", "iz"), ("ise", "iz"),
    ("ations", "at"), ("ation", "at"), ("ements", ""), ("ement", ""), ("ments", ""), ("ment", ""), ("ities", ""),
    ("ity", ""), ("ingly", ""), ("edly", ""), ("ings", ""), ("ing", ""), ("ions", ""), ("ion", ""), ("ally", ""),
    ("ies", ""), ("ied", ""), ("ers", ""), ("er", ""), ("ors", ""), ("or", ""), ("ed", ""), ("es", ""), ("ly", ""),
    ("s", ""), ("e", ""), ("y", ""),
)  # fmt: skip
_SHORT = frozenset(("ing", "ed", "es", "s", "e"))  # leave two letters: used, using
_VOWELS = frozenset("aeiouy")
ValueT = TypeVar("ValueT")


@lru_cache(maxsize=65_536)
def stem(word: str) -> str:
    """Return what the forms of a word share: ``loads``, ``loading`` and ``loader`` are one."""
    if word.endswith(("ss", "eed")) or not word.isascii():
        return word
    for suffix, instead in _SUFFIXES:
        rest = word[: -len(suffix)]
        if suffix == "y" and rest[-1:] in _VOWELS:
            break  # employ, display
        if word.endswith(suffix) and len(rest) >= (2 if suffix in _SHORT else 3) and _VOWELS & set(rest):
            return _trimmed(rest + instead)
    return word


def _trimmed(cut: str) -> str:
    if len(cut) > 6 and cut.endswith("at"):
        return cut[:-2]  # generate, generation
    if len(cut) > 3 and cut[-1] == cut[-2] and cut[-1] not in "lse":
        return cut[:-1]  # splitting, mapped
    if len(cut) > 3 and (cut[-1] in "ei" or (cut[-1] == "y" and cut[-2] not in _VOWELS)):
        return cut[:-1]
    return cut


@dataclass(frozen=True, slots=True)
class Knowledge:
    """The lists of ``include/words.yaml``.

    Attributes:
        function_words: words that carry no content.
        negations: words that turn a statement round.
        numbers: number word → its digits.
        markers: word → the first word of its line: left and right of it are not the same.
        heads: stem → the stem that stands for its group of synonyms.
        sides: stem → (opposition, side), where it has any.
        ambiguous: stems whose side says little when they stand alone.
        members: head → classes whose members exclude each other.
    """

    function_words: frozenset[str]
    negations: frozenset[str]
    numbers: dict[str, str]
    markers: dict[str, str]
    heads: dict[str, str]
    sides: dict[str, tuple[tuple[int, int], ...]]
    ambiguous: frozenset[str]
    members: dict[str, tuple[int, ...]]


@cache
def knowledge() -> Knowledge:
    """Return the lists of ``include/words.yaml``."""
    data = yaml.safe_load(include_path("words.yaml").read_text(encoding="utf-8"))
    heads: dict[str, str] = {}
    for line in data["synonyms"]:
        group = [stem(word) for word in line.split()]
        for word in group:
            heads.setdefault(word, group[0])
    sides: dict[str, list[tuple[int, int]]] = {}
    for number, line in enumerate(data["opposites"]):
        for side, words in enumerate(line.split("|")):
            for word in dict.fromkeys(stem(word) for word in words.split()):
                sides.setdefault(word, []).append((number, side))
    members: dict[str, list[int]] = {}
    for number, line in enumerate(data["classes"]):
        stems = (stem(word) for word in line.split())
        for word in dict.fromkeys(heads.get(stemmed, stemmed) for stemmed in stems):
            members.setdefault(word, []).append(number)
    return Knowledge(
        function_words=frozenset(word for line in data["function"] for word in line.split()),
        negations=frozenset(word for line in data["negations"] for word in line.split()),
        numbers={word: digits for digits, words in data["numbers"].items() for word in words.split()},
        markers={word: line.split()[0] for line in data["markers"] for word in line.split()},
        heads=heads,
        sides=_frozen(sides),
        ambiguous=frozenset(stem(word) for line in data["ambiguous"] for word in line.split()),
        members=_frozen(members),
    )


def words(text: str) -> list[str]:
    """Return the words of a text in lower case, with straight apostrophes."""
    return [word.replace("’", "'") for word in WORD.findall(text.lower())]  # noqa: RUF001 — as above


def content_stems(text: str) -> list[str]:
    """Return the stems of a text's words in order; function words are left out."""
    function_words = knowledge().function_words
    return [stem(word) for word in words(text) if word not in function_words]


def head(stemmed: str) -> str:
    """Return the stem that stands for a stem and its synonyms."""
    return knowledge().heads.get(stemmed, stemmed)


def _frozen(lists: dict[str, list[ValueT]]) -> dict[str, tuple[ValueT, ...]]:
    return {name: tuple(values) for name, values in lists.items()}
