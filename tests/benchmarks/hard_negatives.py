"""Questions that look alike and want another answer: a seeded generator by five rules.

Negation, antonym, number, entity swap, direction swap. The rules and word lists here are the generator's own: the gate
that is judged by them knows none of this file.
"""

import random
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

ANTONYMS = (
    "enable/disable", "enables/disables", "enabled/disabled", "add/remove", "adds/removes", "added/removed",
    "create/delete", "creates/deletes", "created/deleted", "creating/deleting", "load/unload", "loading/unloading",
    "upload/download", "uploaded/downloaded", "uploading/downloading", "start/stop", "starts/stops", "open/close",
    "before/after", "first/last", "next/previous", "increase/decrease", "increases/decreases", "more/less",
    "larger/smaller", "large/small", "long/short", "faster/slower", "fast/slow", "easy/difficult", "easily/hardly",
    "same/different", "similar/different", "multiple/single", "all/none", "every/no", "always/never", "with/without",
    "inside/outside", "local/remote", "public/private", "true/false", "input/output", "inputs/outputs", "train/test",
    "training/test", "rows/columns", "row/column", "encode/decode", "encodes/decodes", "compress/decompress",
    "read/write", "reads/writes", "reading/writing", "import/export", "optional/required", "possible/impossible",
    "available/unavailable", "supported/unsupported", "valid/invalid", "success/failure", "new/old", "minimum/maximum",
    "accept/reject", "allow/forbid", "allows/forbids", "allowed/forbidden", "include/exclude", "includes/excludes",
    "including/excluding", "automatically/manually", "left/right", "high/low", "better/worse",
    "combine/separate", "combined/separated", "merge/split", "sort/shuffle", "install/uninstall", "lock/unlock",
    "save/discard", "saved/discarded", "images/texts", "image/text", "audio/video", "start/end", "show/hide",
    "accessible/inaccessible", "explicitly/implicitly", "together/separately", "directly/indirectly",
    "simple/complicated", "recommended/discouraged", "ascending/descending", "internal/external", "lists/dictionaries",
)  # fmt: skip
AUXILIARY = re.compile(r"\b(is|are|was|were|can|will|should|does|do|has|have|must|may|would|could)\b(?! not\b|n't)")
NOT = re.compile(r"\b(is|are|was|were|can|will|should|does|do|must|may) not\b|\b(is|are|does|do|was|were)n['’]t\b")  # noqa: RUF001
NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)*(?![\w])|(?<=v)\d+(?:\.\d+)+")
NUMBER_WORDS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
ENTITY = re.compile(
    r"`[^`\s]{2,40}`|\b\w+_\w+(?:\(\))?|\b\w+(?:\.\w+)+\(\)|\b[A-Z][a-z]+[A-Z]\w*\b|(?<=[a-z,] )[A-Z][A-Za-z]{2,}\b"
)
_THING = r"`[^`]+`|[\w.]+"
DIRECTION = re.compile(  # two things, not a verb and a thing
    rf"(\b(?:the|a|an|your|its|each|this|their) )({_THING}) "
    r"(into|from|than|before|after|over|instead of|rather than|onto|to) "
    rf"((?:the |a |an |your |its |each )|(?=`))({_THING})"
    rf"|()(\w+s) (into|from|than|before|after|over|instead of|rather than|onto) ((?:the |a |an |your |its )?)({_THING})"
)
_FLIPS = {a: b for pair in ANTONYMS for a, b in (pair.split("/"), pair.split("/")[::-1])}
_DUMB = frozenset("the a an it this that be you your order able used use them they is are due up how".split())  # noqa: SIM905


class HardNegative(NamedTuple):
    """A question, one that must not share its answer, and the rule that made it."""

    question: str
    other: str
    rule: str


def negation(text: str, draw: random.Random, pool: Sequence[str]) -> str | None:
    """Negate the first or another auxiliary, or take a negation away."""
    gone = list(NOT.finditer(text))
    if gone and draw.random() < 0.5:
        match = draw.choice(gone)
        return text[: match.start()] + (match.group(1) or match.group(2)) + text[match.end() :]
    places = list(AUXILIARY.finditer(text))
    if not places:
        return None
    match = draw.choice(places[:2])
    word = match.group()
    negated = "cannot" if word == "can" else draw.choice([f"{word} not", f"{word} never"])
    return text[: match.start()] + negated + text[match.end() :]


def antonym(text: str, draw: random.Random, pool: Sequence[str]) -> str | None:
    """Turn one word into its opposite."""
    words = re.finditer(r"\b\w+\b", text)
    places = [match for match in words if match.group().lower() in _FLIPS and not text.startswith("No,", match.start())]
    if not places:
        return None
    match = draw.choice(places)
    flipped = _FLIPS[match.group().lower()]
    word = flipped.capitalize() if match.group()[0].isupper() else flipped
    return text[: match.start()] + word + text[match.end() :]


def number(text: str, draw: random.Random, pool: Sequence[str]) -> str | None:
    """Change one number: a digit more, another digit, another number word."""
    words = re.finditer(rf"\b(?:{'|'.join(NUMBER_WORDS[1:])})\b", text, re.IGNORECASE)
    places = [*NUMBER.finditer(text), *words]
    if not places:
        return None
    match = draw.choice(places)
    old = match.group()
    if not old[0].isdigit():
        new = draw.choice([word for word in NUMBER_WORDS[1:] if word != old.lower()])
    elif draw.random() < 0.5:
        new = old + "0" if old != "0" else "10"
    else:
        place = draw.choice([i for i, c in enumerate(old) if c.isdigit()])
        new = old[:place] + draw.choice([c for c in "123456789" if c != old[place]]) + old[place + 1 :]
    return text[: match.start()] + new + text[match.end() :]


def entity(text: str, draw: random.Random, pool: Sequence[str]) -> str | None:
    """Put another name of the same kind in the place of one, everywhere in the text."""
    names = sorted({match.group() for match in ENTITY.finditer(text)})
    if not names:
        return None
    old = draw.choice(names)
    alike = [name for name in pool if _kind(name) == _kind(old) and name.lower().strip("`()") not in text.lower()]
    return text.replace(old, draw.choice(alike)) if alike else None


def direction(text: str, draw: random.Random, pool: Sequence[str]) -> str | None:
    """Swap what stands on the two sides of a word of direction."""
    found = [[group for group in match.groups() if group is not None] for match in DIRECTION.finditer(text)]
    starts = [match.span() for match in DIRECTION.finditer(text)]
    places = [
        (span, parts)
        for span, parts in zip(starts, found, strict=True)
        if not {parts[1].lower(), parts[4].lower()} & _DUMB
        and parts[1].lower() != parts[4].lower()
        and not parts[4].endswith("ing")
    ]
    if not places:
        return None
    (begin, end), (article, left, marker, other_article, right) = draw.choice(places)
    return f"{text[:begin]}{article}{right} {marker} {other_article}{left}{text[end:]}"


RULES: dict[str, Callable[[str, random.Random, Sequence[str]], str | None]] = {
    rule.__name__: rule for rule in (negation, antonym, number, entity, direction)
}


def hard_negatives(pairs: Sequence[tuple[str, str]], count: int, seed: int) -> list[HardNegative]:
    """Return ``count`` hard negatives made from pairs (question, paraphrase).

    Every other one changes the question itself, the rest its paraphrase, so that the change hides among others. Rules
    take turns; where one does not apply to a text, the next one is tried.
    """
    draw = random.Random(seed)
    pool = sorted({match.group() for pair in pairs for text in pair for match in ENTITY.finditer(text)})
    order = draw.sample(range(len(pairs)), len(pairs))
    made: dict[tuple[str, str], HardNegative] = {}
    names = list(RULES)
    turn = 0
    while len(made) < count:
        question, paraphrase = pairs[order[turn % len(order)]]
        base = paraphrase if turn % 2 else question
        for step in range(len(names)):
            rule = names[(turn + turn // len(order) + step) % len(names)]
            other = RULES[rule](base, draw, pool)
            if other is not None and other != base and other != question:
                made.setdefault((question, other), HardNegative(question, other, rule))
                break
        turn += 1
    return list(made.values())[:count]


def _kind(name: str) -> str:
    if name.startswith("`"):
        return "code"
    if "_" in name or "." in name or name.endswith("()"):
        return "identifier"
    return "name"
