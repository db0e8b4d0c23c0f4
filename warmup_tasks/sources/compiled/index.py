"""Where each value of JSON lines stands: one pass over the bytes, one entry a value, nothing is copied.

Strict: a line that is taken is JSON as orjson takes it. One that is not taken may still be: names with escapes, or
nesting deeper than ``MAX_DEPTH``, are left to the caller.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from warmup_tasks.compiling import compiled_in_place

NULL, FALSE, TRUE, NUMBER, INTEGER, TEXT, ESCAPED, LIST, OBJECT = range(9)
"""Kinds of values; a number is an INTEGER without point and exponent, a text is ESCAPED where it holds a backslash."""

MAX_DEPTH = 64
_MOST_CHARACTERS = 64  # of a number
_LINE_END, _QUOTE, _COMMA, _COLON, _BACKSLASH, _MINUS = 10, 34, 44, 58, 92, 45
_LIST_END, _OBJECT_START, _OBJECT_END = 93, 123, 125
_VALUE, _VALUE_OR_END, _AFTER, _NAME_OR_END, _NAME = range(5)

Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint64]
Numbers = npt.NDArray[np.int32]
_ONES, _HIGH_BITS = np.uint64(0x0101010101010101), np.uint64(0x8080808080808080)
_BLANKS, _QUOTES, _BACKSLASHES = (_ONES * np.uint64(byte) for byte in (0x20, _QUOTE, _BACKSLASH))


def _plain() -> Bytes:
    table = np.ones(256, dtype=np.uint8)
    table[[_QUOTE, _BACKSLASH, *range(0x20), *range(0x80, 0x100)]] = 0
    return table


PLAIN = _plain()
"""1 for each byte that a text holds as it stands."""


def entries_at_most(size: int) -> int:
    """Return how many entries content of that size can need: one for two bytes, and those of open lists."""
    return size // 2 + MAX_DEPTH + 2


@compiled_in_place
def _is_digit(byte: int) -> bool:
    return 48 <= byte <= 57


@compiled_in_place
def _unit(data: Bytes, at: int) -> int:
    """Return the four hexadecimal digits of an escape as a number, or -1."""
    value = 0
    for byte in data[at : at + 4]:
        if 48 <= byte <= 57:
            value = value * 16 + byte - 48
        elif 65 <= byte <= 70 or 97 <= byte <= 102:
            value = value * 16 + (byte & 0xDF) - 55
        else:
            return -1
    return value


@compiled_in_place
def _after_escape(data: Bytes, at: int) -> int:
    """Return where an escape ends, or -1; half a surrogate pair is none."""
    byte = data[at + 1]
    if byte != 117:  # u
        is_short = byte == 34 or byte == 92 or byte == 47 or byte == 98 or byte == 102
        return at + 2 if is_short or byte == 110 or byte == 114 or byte == 116 else -1
    unit = _unit(data, at + 2)
    if unit < 0 or 0xDC00 <= unit < 0xE000:
        return -1
    if not 0xD800 <= unit < 0xDC00:
        return at + 6
    if data[at + 6] != _BACKSLASH or data[at + 7] != 117 or not 0xDC00 <= _unit(data, at + 8) < 0xE000:
        return -1
    return at + 12


@compiled_in_place
def _after_character(data: Bytes, at: int) -> int:
    """Return where a character of several bytes ends, or -1 where they are no UTF-8."""
    first, second = data[at], data[at + 1]
    if second & 0xC0 != 0x80:
        return -1
    if 0xC2 <= first < 0xE0:
        return at + 2
    if data[at + 2] & 0xC0 != 0x80:
        return -1
    if 0xE0 <= first < 0xF0:
        return -1 if (first == 0xE0 and second < 0xA0) or (first == 0xED and second >= 0xA0) else at + 3
    if data[at + 3] & 0xC0 != 0x80 or not 0xF0 <= first < 0xF5:
        return -1
    return -1 if (first == 0xF0 and second < 0x90) or (first == 0xF4 and second >= 0x90) else at + 4


@compiled_in_place
def _are_plain(word: np.uint64) -> bool:
    """Say whether a text holds eight bytes as they stand: the highest bit of each tells, as in every "find a zero"."""
    quotes, backslashes = word ^ _QUOTES, word ^ _BACKSLASHES
    special = word | (word - _BLANKS) & ~word
    special |= (quotes - _ONES) & ~quotes | (backslashes - _ONES) & ~backslashes
    return bool(special & _HIGH_BITS == 0)


@compiled_in_place
def _after_text(data: Bytes, words: Words, at: int, plain: Bytes) -> tuple[int, bool]:
    """Return where the text that begins at ``at`` has its closing quote, or -1, and whether it holds a backslash."""
    is_escaped = False
    while at >= 0:
        while plain[data[np.uintp(at)]]:
            at += 1
            if at & 7 == 0:
                while _are_plain(words[np.uintp(at >> 3)]):
                    at += 8
        byte = data[at]
        if byte == _QUOTE:
            return at, is_escaped
        if byte == _BACKSLASH:
            is_escaped = True
            at = _after_escape(data, at)
        elif byte < 0x20:
            break
        else:
            at = _after_character(data, at)
    return -1, is_escaped


@compiled_in_place
def _after_number(data: Bytes, at: int) -> tuple[int, int]:  # noqa: C901 - one branch a part of a number
    """Return where a number ends, or -1, and its kind; one that may be too large for a double is left out."""
    start = at
    if data[at] == _MINUS:
        at += 1
    if not _is_digit(data[at]):
        return -1, INTEGER
    if data[at] == 48:
        at += 1
    else:
        while _is_digit(data[at]):
            at += 1
    kind = INTEGER
    if data[at] == 46:
        kind = NUMBER
        at += 1
        if not _is_digit(data[at]):
            return -1, kind
        while _is_digit(data[at]):
            at += 1
    if data[at] == 101 or data[at] == 69:
        kind = NUMBER
        at += 1
        if data[at] == 43 or data[at] == _MINUS:
            at += 1
        if not _is_digit(data[at]):
            return -1, kind
        exponent = at
        while _is_digit(data[at]):
            at += 1
        if at - exponent > 2:
            return -1, kind
    return at if at - start <= _MOST_CHARACTERS else -1, kind


@compiled_in_place
def _after_word(data: Bytes, at: int) -> tuple[int, int]:
    """Return where true, false or null ends, or -1, and its kind."""
    first, second, third, fourth = data[at], data[at + 1], data[at + 2], data[at + 3]
    if first == 116 and second == 114 and third == 117 and fourth == 101:
        return at + 4, TRUE
    if first == 110 and second == 117 and third == 108 and fourth == 108:
        return at + 4, NULL
    if first == 102 and second == 97 and third == 108 and fourth == 115 and data[at + 4] == 101:
        return at + 5, FALSE
    return -1, NULL


@compiled_in_place
def _after_blanks(data: Bytes, at: int) -> int:
    while data[at] == 32 or data[at] == 9 or data[at] == 13:
        at += 1
    return at


@compiled_in_place
def _index_line(  # noqa: C901 - one branch a state
    data: Bytes, words: Words, at: int, plain: Bytes, tape: Any, count: int, open_entries: Numbers
) -> tuple[int, int]:
    """Index one line; return where it ends and the number of entries then; -1 where it is not taken."""
    kinds, starts, ends, nexts, name_starts, name_ends = tape
    depth, wanted, name_start, name_end = 0, _VALUE, -1, -1
    while True:
        at = _after_blanks(data, at)
        byte = data[at]
        closes = False
        if wanted == _AFTER:
            if depth == 0:
                return (at, count) if byte == _LINE_END else (-1, count)
            is_object = kinds[open_entries[depth - 1]] == OBJECT
            if byte == _COMMA:
                wanted = _NAME if is_object else _VALUE
            elif byte == (_OBJECT_END if is_object else _LIST_END):
                closes = True
            else:
                return -1, count
        elif wanted > _AFTER:
            if byte == _QUOTE:
                name_start = at + 1
                name_end, is_escaped = _after_text(data, words, name_start, plain)
                if name_end < 0 or is_escaped:
                    return -1, count
                at = _after_blanks(data, name_end + 1)
                if data[at] != _COLON:
                    return -1, count
                wanted = _VALUE
            elif byte == _OBJECT_END and wanted == _NAME_OR_END:
                closes = True
            else:
                return -1, count
        elif byte == _LIST_END and wanted == _VALUE_OR_END:
            closes = True
        else:
            entry = count
            count += 1
            name_starts[entry], name_ends[entry] = name_start, name_end
            name_start = name_end = -1
            starts[entry], nexts[entry] = at, count
            wanted = _AFTER
            if byte | 0x20 == _OBJECT_START:  # or the start of a list
                if depth == MAX_DEPTH:
                    return -1, count
                kinds[entry] = OBJECT if byte == _OBJECT_START else LIST
                open_entries[depth] = entry
                depth += 1
                wanted = _NAME_OR_END if byte == _OBJECT_START else _VALUE_OR_END
            else:
                if byte == _QUOTE:
                    starts[entry] = at + 1
                    at, is_escaped = _after_text(data, words, at + 1, plain)
                    kinds[entry] = ESCAPED if is_escaped else TEXT
                    ends[entry] = at
                    at += 1 if at >= 0 else 0
                elif byte == _MINUS or _is_digit(byte):
                    at, kinds[entry] = _after_number(data, at)
                    ends[entry] = at
                else:
                    at, kinds[entry] = _after_word(data, at)
                    ends[entry] = at
                if at < 0:
                    return -1, count
                continue
        at += 1
        if closes:
            depth -= 1
            entry = open_entries[depth]
            ends[entry], nexts[entry] = at, count
            wanted = _AFTER


@compiled_in_place
def index_lines(
    data: Bytes, words: Words, plain: Bytes, tape: Any, roots: Numbers, line_starts: Numbers, open_entries: Numbers
) -> int:
    """Index lines, the last one with its end; return the number of entries.

    Args:
        data: the lines, and at least 16 line ends more, so that nothing looks beyond them.
        words: the same, eight bytes each, but for what is left over.
        plain: :data:`PLAIN`.
        tape: gets of each entry its kind, where its value starts and ends (texts without their quotes), the entry after
            all that it holds, and where its name starts and ends (-1: it has none).
        roots: gets the entry of each line, -1 where the line is no object or is not taken.
        line_starts: gets where each line starts.
        open_entries: room for ``MAX_DEPTH`` entries.
    """
    at, count = 0, 0
    kinds = tape[0]
    for line in range(len(roots)):
        line_starts[line] = at
        end, after = _index_line(data, words, at, plain, tape, count, open_entries)
        if end >= 0 and kinds[count] == OBJECT:
            roots[line], count, at = count, after, end + 1
            continue
        roots[line] = -1
        while data[at] != _LINE_END:
            at += 1
        at += 1
    return count
