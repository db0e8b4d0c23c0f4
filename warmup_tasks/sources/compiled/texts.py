"""Texts and prompts of indexed lines, written out: texts decoded, JSON as orjson writes it, canonical JSON (RFC 8785).

A prompt is left alone where either form would take more than copying: numbers that need rewriting, names that are not
ASCII or stand twice, more names than a request has.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from warmup_tasks.compiling import compiled_in_place
from warmup_tasks.sources.compiled.index import ESCAPED, INTEGER, LIST, MAX_DEPTH, OBJECT, TEXT, TRUE

_MOST_DIGITS, _MOST_NAMES = 15, 64
_QUOTE, _COMMA, _COLON, _BACKSLASH, _MINUS, _POINT, _ZERO = 34, 44, 58, 92, 45, 46, 48

Bytes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.int32]
Marks = npt.NDArray[np.bool_]


def _ascii(text: str) -> Bytes:
    return np.frombuffer(text.encode(), dtype=np.uint8)


SHORT = np.zeros(256, dtype=np.uint8)
"""What a letter behind a backslash stands for, and back."""
for _letter, _code in ((98, 8), (102, 12), (110, 10), (114, 13), (116, 9)):
    SHORT[_letter], SHORT[_code] = _code, _letter
_DIGITS = _ascii("0123456789abcdef")
_OPENINGS = _ascii('{"messages":'), _ascii('{"prompt":')
_TOOLS, _ARGS = _ascii(',"tools":'), _ascii(',"template_args":')
_NO_TOOLS, _NO_ARGS = _ascii(',"tools":[]'), _ascii(',"template_args":{}')


@compiled_in_place
def _copy(data: Bytes, start: int, end: int, out: Bytes, at: int) -> int:
    for place in range(end - start):
        out[np.uintp(at + place)] = data[np.uintp(start + place)]
    return at + end - start


@compiled_in_place
def _unit(data: Bytes, at: int) -> int:
    value = 0
    for byte in data[at : at + 4]:
        value = value * 16 + (byte - 48 if byte <= 57 else (byte & 0xDF) - 55)
    return value


@compiled_in_place
def _put(code: int, out: Bytes, at: int) -> int:
    """Write a character as UTF-8."""
    if code < 0x80:
        out[at] = code
        return at + 1
    if code < 0x800:
        out[at], out[at + 1] = 0xC0 | code >> 6, 0x80 | code & 0x3F
        return at + 2
    if code < 0x10000:
        out[at], out[at + 1], out[at + 2] = 0xE0 | code >> 12, 0x80 | code >> 6 & 0x3F, 0x80 | code & 0x3F
        return at + 3
    out[at], out[at + 1] = 0xF0 | code >> 18, 0x80 | code >> 12 & 0x3F
    out[at + 2], out[at + 3] = 0x80 | code >> 6 & 0x3F, 0x80 | code & 0x3F
    return at + 4


@compiled_in_place
def _put_in_json(code: int, out: Bytes, at: int) -> int:
    """Write a character as it stands in a JSON text."""
    if code >= 0x20 and code != _QUOTE and code != _BACKSLASH:
        return _put(code, out, at)
    out[at] = _BACKSLASH
    if code >= 0x20:
        out[at + 1] = code
        return at + 2
    if SHORT[code]:
        out[at + 1] = SHORT[code]
        return at + 2
    out[at + 1], out[at + 2], out[at + 3] = 117, 48, 48
    out[at + 4], out[at + 5] = _DIGITS[code >> 4], _DIGITS[code & 15]
    return at + 6


@compiled_in_place
def _unescape(data: Bytes, start: int, end: int, is_json: bool, out: Bytes, at: int) -> int:
    """Write a text with escapes, decoded or in the one form that it has in JSON; it is never longer than before."""
    place = start
    while place < end:
        if data[place] != _BACKSLASH:
            out[at] = data[place]
            at, place = at + 1, place + 1
            continue
        letter = data[place + 1]
        if letter == 117:
            code = _unit(data, place + 2)
            place += 6
            if 0xD800 <= code < 0xDC00:
                code = 0x10000 + ((code - 0xD800) << 10) + _unit(data, place + 2) - 0xDC00
                place += 6
        else:
            code = SHORT[letter] or letter
            place += 2
        at = _put_in_json(code, out, at) if is_json else _put(code, out, at)
    return at


@compiled_in_place
def write_texts(data: Bytes, tape: Any, entries: Numbers, lowest: int, highest: int, out: Any) -> int:
    """Write the values of some kinds as texts, decoded; return how many bytes they take.

    Args:
        data: the lines.
        tape: their entries.
        entries: of the values; -1: none.
        lowest: kind from which on,
        highest: and up to which values are written.
        out: gets the bytes, where each begins, and which rows have one. With no room for bytes, nothing is written, and
            the result is how many may be needed.
    """
    kinds, starts, ends, _, _, _ = tape
    written, offsets, is_given = out
    at = 0
    is_dry = len(written) == 0
    for row in range(len(entries)):
        offsets[row] = at
        entry = entries[row]
        is_given[row] = entry >= 0 and lowest <= kinds[entry] <= highest
        if not is_given[row]:
            continue
        if is_dry:
            at += ends[entry] - starts[entry]
        elif kinds[entry] == ESCAPED:
            at = _unescape(data, starts[entry], ends[entry], False, written, at)
        else:
            at = _copy(data, starts[entry], ends[entry], written, at)
    offsets[len(entries)] = at
    return at


@compiled_in_place
def _is_plain_number(data: Bytes, start: int, end: int, kind: int) -> bool:
    """Say whether a number is written alike by every writer: few digits, no exponent, no needless zero."""
    first = start + 1 if data[start] == _MINUS else start
    if end - first > _MOST_DIGITS or (data[first] == _ZERO and kind == INTEGER and first > start):
        return False
    if kind == INTEGER:
        return True
    zeros = 0
    for at in range(first, end):
        if data[at] != _POINT and not 48 <= data[at] <= 57:
            return False
        if data[at] == _ZERO and zeros == at - first - (1 if at > first + 1 else 0):
            zeros += 1
    return data[end - 1] != _ZERO and zeros < 4


@compiled_in_place
def _is_before(data: Bytes, tape: Any, one: int, other: int) -> int:
    """Compare two names: 1 if the first comes first, 0 if they are equal, else -1."""
    start, end, start_2, end_2 = tape[4][one], tape[5][one], tape[4][other], tape[5][other]
    size = min(end - start, end_2 - start_2)
    for place in range(size):
        byte, byte_2 = data[start + place], data[start_2 + place]
        if byte != byte_2:
            return 1 if byte < byte_2 else -1
    return 0 if end - start == end_2 - start_2 else (1 if end - start < end_2 - start_2 else -1)


@compiled_in_place
def _members(data: Bytes, tape: Any, entry: int, order: Numbers, top: int) -> int:
    """Write the members of an object, sorted by name, behind ``top``; return their end, -1 where they cannot be had."""
    child, end, count = entry + 1, tape[3][entry], 0
    while child < end:
        if count == _MOST_NAMES:
            return -1
        for at in range(tape[4][child], tape[5][child]):
            if data[at] >= 0x80:
                return -1
        place = top + count
        while place > top:
            comparison = _is_before(data, tape, child, order[place - 1])
            if comparison == 0:
                return -1
            if comparison < 0:
                break
            order[place] = order[place - 1]
            place -= 1
        order[place] = child
        count += 1
        child = tape[3][child]
    return top + count


@compiled_in_place
def _write_scalar(data: Bytes, tape: Any, entry: int, out: Bytes, at: int) -> int:
    """Write a value that holds no others; return where it ends, or -1 where it must be left alone."""
    kind, start, end = tape[0][entry], tape[1][entry], tape[2][entry]
    if kind <= INTEGER:
        is_plain = kind <= TRUE or _is_plain_number(data, start, end, kind)
        return _copy(data, start, end, out, at) if is_plain else -1
    out[at] = _QUOTE
    at = _copy(data, start, end, out, at + 1) if kind == TEXT else _unescape(data, start, end, True, out, at + 1)
    out[at] = _QUOTE
    return at + 1


@compiled_in_place
def _write(data: Bytes, tape: Any, entry: int, is_canonical: bool, work: Any, out: Bytes, at: int) -> int:
    """Write a value as JSON; return where it ends, or -1 where it must be left alone.

    ``work`` is room for the members of open objects in their order, and of each open value for its entry, the next
    part, and where its members begin and end. (No function calls itself: numba cannot keep such a one on disk.)
    """
    kinds, nexts = tape[0], tape[3]
    order, owners, cursors, bottoms, tops = work
    depth, value = 0, entry
    while value >= 0:
        if kinds[value] < LIST:
            at = _write_scalar(data, tape, value, out, at)
        else:
            is_object = kinds[value] == OBJECT
            out[at] = 123 if is_object else 91
            at += 1
            bottom = tops[depth - 1] if depth else 0
            top = _members(data, tape, value, order, bottom) if is_object else bottom
            owners[depth], bottoms[depth], tops[depth] = value, bottom, top
            cursors[depth] = bottom if is_object and is_canonical else value + 1
            depth += 1
            if top < 0:
                at = -1
        if at < 0:
            return -1
        value = -1
        while depth > 0 and value < 0:
            owner, cursor = owners[depth - 1], cursors[depth - 1]
            is_object = kinds[owner] == OBJECT
            if is_object and is_canonical:
                is_first, is_over = cursor == bottoms[depth - 1], cursor == tops[depth - 1]
                value = -1 if is_over else order[cursor]
                cursors[depth - 1] = cursor + 1
            else:
                is_first, is_over = cursor == owner + 1, cursor == nexts[owner]
                value = -1 if is_over else cursor
                cursors[depth - 1] = cursor if is_over else nexts[cursor]
            if is_over:
                out[at] = 125 if is_object else 93
                at += 1
                depth -= 1
                continue
            if not is_first:
                out[at] = _COMMA
                at += 1
            if is_object:
                out[at] = _QUOTE
                at = _copy(data, tape[4][value], tape[5][value], out, at + 1)
                out[at], out[at + 1] = _QUOTE, _COLON
                at += 2
    return at


@compiled_in_place
def _are_objects(tape: Any, entry: int) -> bool:
    if tape[0][entry] != LIST:
        return False
    child = entry + 1
    while child < tape[3][entry]:
        if tape[0][child] != OBJECT:
            return False
        child = tape[3][child]
    return True


@compiled_in_place
def _is_prompt(tape: Any, content: int, tools: int, args: int) -> bool:
    """Say whether these are the parts of one prompt: a text, or messages with tools and template arguments."""
    if tape[0][content] != LIST:
        return bool(TEXT <= tape[0][content] <= ESCAPED and tape[2][content] > tape[1][content])
    if tape[3][content] == content + 1 or not _are_objects(tape, content):
        return False
    return bool((tools < 0 or _are_objects(tape, tools)) and (args < 0 or tape[0][args] == OBJECT))


def room() -> tuple[Numbers, ...]:
    """Return the room that :func:`write_prompts` works in, to be used again."""
    return np.empty(MAX_DEPTH * _MOST_NAMES, dtype=np.int32), *np.empty((4, MAX_DEPTH), dtype=np.int32)


@compiled_in_place
def write_prompts(
    data: Bytes, tape: Any, contents: Numbers, tools: Numbers, args: Numbers, is_canonical: bool, work: Any, out: Any
) -> int:
    """Write prompts as they are stored, or in canonical form; return how many bytes they take.

    Args:
        data: the lines.
        tape: their entries.
        contents: entry of the text or the messages of each; -1: none.
        tools: entry of the tool definitions; -1: none.
        args: entry of the template arguments; -1: none.
        is_canonical: names sorted, and nothing left out.
        work: what :func:`room` returned.
        out: gets the bytes, where each begins, and which rows have one. With no room for bytes, nothing is written, and
            the result is how many may be needed.
    """
    kinds, starts, ends, _, _, _ = tape
    written, offsets, is_given = out
    at = 0
    is_dry = len(written) == 0
    for row in range(len(contents)):
        offsets[row] = at
        content, tool, arg = contents[row], tools[row], args[row]
        is_given[row] = content >= 0 and _is_prompt(tape, content, tool, arg)
        if not is_given[row]:
            continue
        if is_dry:
            at += ends[content] - starts[content] + 64
            at += ends[tool] - starts[tool] if tool >= 0 else 0
            at += ends[arg] - starts[arg] if arg >= 0 else 0
            continue
        is_chat = kinds[content] == LIST
        opening = _OPENINGS[0] if is_chat else _OPENINGS[1]
        end = _copy(opening, 0, len(opening), written, at)
        end = _write(data, tape, content, is_canonical, work, written, end)
        for turn in range(2):
            is_tools = (turn == 0) != is_canonical
            part = (tool if is_tools else arg) if is_chat else -1
            if end >= 0 and part >= 0:
                name = _TOOLS if is_tools else _ARGS
                end = _write(data, tape, part, is_canonical, work, written, _copy(name, 0, len(name), written, end))
            elif end >= 0 and is_canonical:
                name = _NO_TOOLS if is_tools else _NO_ARGS
                end = _copy(name, 0, len(name), written, end)
        if end < 0:
            is_given[row] = False
            continue
        written[end] = 125
        at = end + 1
    offsets[len(contents)] = at
    return at
