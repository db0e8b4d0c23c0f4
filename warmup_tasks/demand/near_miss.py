"""The near-miss gate: what no cosine may join, because the questions want different answers.

Vectors of "enable X" and "disable X", of "3 days" and "30 days", of "from A to B" and "from B to A" are close, closer
often than those of honest paraphrases. Here two texts are compared by what decides an answer: numbers, names,
negations, opposites, members of one class, direction. Wording may differ everywhere else. When in doubt the texts stay
apart: a miss costs a generation, a wrong hit a wrong answer. What is known of words lies in ``words.py``.
"""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from warmup_tasks.demand.words import content_stems, head, knowledge, stem, words

_NUMBER = re.compile(r"(?:(?<![^\W\d])|(?<=\bv))\d+(?:[.,:]\d+)*")
_ANY_ONE = frozenset({"1"})  # "1 day", "one day" and "a day" are one
_OPERATOR = re.compile(r"(?<=\w)\s*[+*/^=<>-]\s*(?=\d)|(?<=\d)\s*[+*/^=<>-]\s*(?=\w)|[<>]=?|[+-](?=\d)")
_QUOTED = re.compile(r"`([^`]+)`|\"([^\"]{1,60})\"|“([^”]{1,60})”|(?<!\w)'([^'\s]{1,60})'(?!\w)")
_NAME = re.compile(
    r"\b[^\W\d_]\w+(?:[._:@]\w+)+"  # module.function, a@b
    r"|\b\w*_\w*\w|\b[^\W_]*[a-z][A-Z]\w*|\b[A-Z]{2,}\w*"  # snake_case, camelCase, ACRONYM
    r"|\b\w*[^\W\d_]\d+\w*|\b\d+[^\W\d_]\w*"  # v2, 3D
)
_VERSION = re.compile(r"[vV]\d")  # a number
_CAPITAL = re.compile(r"(?<=[\w,;:)`'\"] )[A-Z]\w+")
_ANSWER_PARTICLE = re.compile(r"^\s*(?:no|yes|nope|yeah|sure|ok|okay)\s*[,.:;!-]+\s*", re.IGNORECASE)
_PREFIXES = ("un", "in", "im", "ir", "il", "dis", "non", "de", "mis", "anti")
_REACH = 3  # words on either side of a marker among which its neighbour is looked for
_LEAST_WORD = 4  # letters of a word that may carry a negating prefix


@dataclass(frozen=True, slots=True)
class Facets:
    """What of a text decides its answer, as far as words tell.

    Attributes:
        numbers: written in digits.
        number_words: written as words, put into digits; a wording may leave one out ("both", "the two").
        operators: arithmetic and comparison signs beside numbers, in order.
        names: code, identifiers, acronyms, words with a capital letter, in lower case.
        negations: how many words negate.
        stems: of all words but function words, negations and numbers, in order.
        sided: (word left of a marker, the marker, word right of it).
    """

    numbers: frozenset[str]
    number_words: frozenset[str]
    operators: tuple[str, ...]
    names: frozenset[str]
    negations: int
    stems: tuple[str, ...]
    sided: frozenset[tuple[str, str, str]]


def near_miss(one: str, other: str) -> str | None:
    """Return why two questions must not share an answer, whatever their cosine is, or None when nothing says so.

    Args:
        one: as it was written: capital letters tell names.
        other: as it was written.

    Returns:
        Which facet differs: ``numbers``, ``names``, ``negation``, ``opposites``, ``polarity`` (a side that only one of
        them takes), ``classes``, ``direction`` or, where one word alone differs and is no synonym, ``word``.
    """
    here, there = facets(one), facets(other)
    return next((facet for facet, differ in _RULES if differ(here, there)), None)


@lru_cache(maxsize=65_536)
def facets(text: str) -> Facets:
    """Return the facets of a text as it was written; a leading "No," answers something and negates nothing."""
    body = _ANSWER_PARTICLE.sub("", " ".join(text.split()))
    known = knowledge()
    every = words(body)
    return Facets(
        numbers=frozenset(match.group() for match in _NUMBER.finditer(body)) - _ANY_ONE,
        number_words=frozenset(known.numbers[word] for word in every if word in known.numbers),
        operators=tuple(match.group().strip() for match in _OPERATOR.finditer(body)),
        names=frozenset(_names(body)),
        negations=sum(word in known.negations for word in every),
        stems=tuple(
            stem(word)
            for word in every
            if not (word in known.function_words or word in known.negations or word in known.numbers or word.isdigit())
        ),
        sided=frozenset(_sided(every)),
    )


def _names(text: str) -> Iterable[str]:
    for match in _QUOTED.finditer(text):
        yield _plain(next(group for group in match.groups() if group))
    for pattern in (_NAME, _CAPITAL):
        for match in pattern.finditer(text):
            if not _VERSION.match(match.group()):
                yield _plain(match.group())


def _plain(name: str) -> str:
    return name.lower().strip("()[]{}.,:;!? ")


def _sided(every: list[str]) -> Iterable[tuple[str, str, str]]:
    known = knowledge()
    for place, word in enumerate(every):
        if word not in known.markers:
            continue
        left, right = every[max(0, place - _REACH) : place], every[place + 1 : place + 1 + _REACH]
        before = next((w for w in reversed(left) if w not in known.function_words), None)
        behind = next((w for w in right if w not in known.function_words), None)
        if before and behind and before != behind:
            yield head(stem(before)), known.markers[word], head(stem(behind))


def _numbers_differ(one: Facets, other: Facets) -> bool:
    here, there = one.numbers | one.number_words, other.numbers | other.number_words
    more, fewer = here - there, there - here
    return one.operators != other.operators or bool(more & one.numbers or fewer & other.numbers or (more and fewer))


def _names_differ(one: Facets, other: Facets) -> bool:
    return _has_strange_name(one, other) or _has_strange_name(other, one)


def _has_strange_name(one: Facets, other: Facets) -> bool:
    """Say whether one text has a name that the other does not have in any form."""
    known = set(map(head, other.stems))
    return any(not set(map(head, content_stems(name))) <= known for name in one.names - other.names)


def _negations_differ(one: Facets, other: Facets) -> bool:
    return one.negations - other.negations + _negated_by_prefix(one, other) - _negated_by_prefix(other, one) != 0


def _negated_by_prefix(one: Facets, other: Facets) -> int:
    """Count the words of one text that stand in the other with a negating prefix: visible, invisible."""
    here, there = Counter(one.stems), Counter(other.stems)
    more, fewer = here - there, there - here
    return sum(any(prefix + word in fewer for prefix in _PREFIXES) for word in more if len(word) >= _LEAST_WORD)


def _opposites_differ(one: Facets, other: Facets) -> bool:
    here, there = Counter(one.stems), Counter(other.stems)
    more, fewer = here - there, there - here
    return any(_are_opposite(a, b) for a in more for b in fewer) or any(
        _are_opposite(a, b) for a, b in _exchanged(one, other)
    )


def _are_opposite(one: str, other: str) -> bool:
    here, there = _sides_of(one), _sides_of(other)
    return any((axis, 1 - side) in there for axis, side in here)


def _sides_of(word: str) -> set[tuple[int, int]]:
    sides = knowledge().sides
    return {*sides.get(word, ()), *sides.get(head(word), ())}


def _polarities_differ(one: Facets, other: Facets) -> bool:
    return _has_strange_side(one, other) or _has_strange_side(other, one)


def _has_strange_side(one: Facets, other: Facets) -> bool:
    """Say whether one text takes a side that the other does not speak of: the other may have meant the opposite."""
    said, known = set(map(head, other.stems)), knowledge()
    return any(
        word in known.sides and word not in known.ambiguous and head(word) not in said for word in set(one.stems)
    )


def _classes_differ(one: Facets, other: Facets) -> bool:
    here, there = _members(one.stems), _members(other.stems)
    if any(here[name] != there[name] for name in here.keys() & there.keys()):
        return True
    members = knowledge().members
    return any(
        head(a) != head(b) and set(members.get(head(a), ())) & set(members.get(head(b), ()))
        for a, b in _exchanged(one, other)
    )


def _members(stems: Iterable[str]) -> dict[int, set[str]]:
    found: dict[int, set[str]] = {}
    for word in map(head, stems):
        for name in knowledge().members.get(word, ()):
            found.setdefault(name, set()).add(word)
    return found


def _directions_differ(one: Facets, other: Facets) -> bool:
    return (
        _changes_sides(one, other)
        or _changes_sides(other, one)
        or _is_swap(one.stems, other.stems)
        or _trade_places(one, other)
    )


def _changes_sides(one: Facets, other: Facets) -> bool:
    """Say whether a word stands right of a marker in one text, and only left of it in the other."""
    left = {(marker, word) for word, marker, _ in other.sided}
    right = {(marker, word) for _, marker, word in other.sided}
    return any((marker, word) in left - right for _, marker, word in one.sided)


def _is_swap(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    """Say whether the same words stand in the same order but for two that changed places."""
    if len(one) != len(other):
        return False
    changed = [(a, b) for a, b in zip(one, other, strict=True) if a != b]
    return len(changed) == 2 and changed[0] == changed[1][::-1]


def _trade_places(one: Facets, other: Facets) -> bool:
    """Say whether each of two words took the other's place: red bag and blue hat, blue bag and red hat."""
    exchanged = set(_exchanged(one, other))
    return any((b, a) in exchanged for a, b in exchanged)


def _exchanged(one: Facets, other: Facets) -> Iterable[tuple[str, str]]:
    """Yield pairs of words that stand before the same word, one in each text only: column data, row data."""
    here, there = set(pairwise(one.stems)), set(pairwise(other.stems))
    before: dict[str, set[str]] = {}
    for word, following in there - here:
        before.setdefault(following, set()).add(word)
    return ((word, instead) for word, following in here - there for instead in before.get(following, ()))


def _words_differ(one: Facets, other: Facets) -> bool:
    """Say whether two texts are the same but for one word, and that is no synonym: an unknown name, as often as not."""
    if len(one.stems) != len(other.stems):
        return False
    changed = [(a, b) for a, b in zip(one.stems, other.stems, strict=True) if a != b]
    return len(changed) == 1 and head(changed[0][0]) != head(changed[0][1])


_RULES = (
    ("numbers", _numbers_differ),
    ("names", _names_differ),
    ("negation", _negations_differ),
    ("opposites", _opposites_differ),
    ("polarity", _polarities_differ),
    ("classes", _classes_differ),
    ("direction", _directions_differ),
    ("word", _words_differ),
)
