"""Columns straight from the bytes of many lines: the questions of ``columns.py``, answered without an object a value.

A column takes the values that the rule of its field takes as they stand. A record with any other is *odd*: it is left
out here and read as an object, by the rules, which say what is wrong with it, if anything. So formats are written once,
reasons are exact, and only what is out of the ordinary pays for it. Nothing here knows a format.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from warmup_tasks.lake.schemas import TIMESTAMP
from warmup_tasks.sources import columns, times
from warmup_tasks.sources.base import Batch
from warmup_tasks.sources.columns import Column, Numbers, Rows
from warmup_tasks.sources.compiled.index import ESCAPED, FALSE, INTEGER, LIST, NULL, NUMBER, OBJECT, TEXT, TRUE
from warmup_tasks.sources.faults import Fault
from warmup_tasks.sources.fields import Path
from warmup_tasks.sources.line_index import Entries, LineIndex, Marks, Members
from warmup_tasks.sources.prompts import PromptNames
from warmup_tasks.sources.span_prompts import SpanPrompts

_WIDEST_INT32 = 2**31 - 1
_WIDEST_EXACT = 2**53
_ISO = r"^\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d{1,6})?)?(Z|[+-]\d\d:?\d\d)?$"


class _OddOnes(dict[int, tuple[Fault, str]]):
    """Takes faults as what they mean here: that the record is to be read by the rules."""

    def __init__(self, is_odd: Marks) -> None:
        self._is_odd = is_odd

    def setdefault(self, place: int, fault: tuple[Fault, str]) -> tuple[Fault, str]:
        self._is_odd[place] = True
        return fault


class SpanRows(Rows):
    """Objects of one kind in indexed lines."""

    def __init__(self, index: LineIndex, entries: Entries, places: Numbers, is_odd: Marks) -> None:
        self._index, self.entries, self._is_odd = index, entries, is_odd
        self.places, self.faults = places, _OddOnes(is_odd)
        self._members: dict[tuple[str | int, ...], Members] = {}

    @cached_property
    def names(self) -> set[str]:
        """The names that the objects have."""
        return set(self._members_at((), self.entries).by_name)

    @cached_property
    def objects(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The objects themselves; asked for only by rules that need them."""
        return [value if isinstance(value, dict) else {} for value in map(self._index.value, self.entries.tolist())]

    def __len__(self) -> int:
        return len(self.entries)

    def where(self, is_wanted: Iterable[bool]) -> "SpanRows":
        """Return the rows for which ``is_wanted`` holds."""
        wanted: Any = is_wanted
        mask = wanted if isinstance(wanted, np.ndarray) else np.fromiter(wanted, dtype=bool, count=len(self))
        if mask.all():
            return self
        return SpanRows(self._index, self.entries[mask], np.asarray(self.places)[mask], self._is_odd)

    def split(self, is_wanted: Any) -> tuple["SpanRows", "SpanRows"]:
        """Return the rows for which ``is_wanted`` holds, and the others."""
        return self.where(is_wanted), self.where(~is_wanted)

    def fill(self, column: Column, other: Callable[[Rows], Column]) -> Column:
        """Return a column with its gaps filled by what ``other`` makes of the rows."""
        array = column if isinstance(column, pa.Array) else pa.array(column)
        if not array.null_count:
            return array
        found = other(self)
        found = found if isinstance(found, pa.Array) else pa.array(found)
        return found if array.type == pa.null() else pc.coalesce(array, found.cast(array.type))

    def values(self, *paths: Path) -> list[Any]:
        """Return of each row the value of the first path that is present and not null, as an object."""
        entries = self._first(paths)
        if not (self._index.are(entries, TEXT) | (entries < 0)).all():
            return list(map(self._index.value, entries.tolist()))
        different = self._index.texts(entries, TEXT, TEXT).dictionary_encode()
        texts = [*different.dictionary.to_pylist(), None]
        if len(texts) == 2 and not different.null_count:
            return texts[:1] * len(self)
        return [texts[number] for number in different.indices.fill_null(-1).to_pylist()]

    def has(self, *paths: Path) -> Marks:
        """Say of each row whether it has a value there that is not null."""
        found: Marks = self._first(paths) >= 0
        return found

    def has_text(self, *paths: Path) -> Marks:
        """Say of each row whether it has a value there that is neither null nor an empty text."""
        entries = self._first(paths)
        return (entries >= 0) & ~self._index.are_empty(entries)

    def equals(self, path: Path, text: str) -> Marks:
        """Say of each row whether the value is that text."""
        return self._index.are_equal(self.at(path), text)

    def each(self, rule: Callable[[int, Any], None]) -> None:
        """Hand the records to the rules."""
        self._is_odd[np.asarray(self.places)] = True

    def only_names(self, known: Iterable[str], free: str) -> None:
        """Refuse records with other names."""
        for name in self.names.difference(known):
            if not name.startswith(free):
                self._set_odd(self.at(name) >= 0)

    def at(self, path: Path) -> Entries:
        """Return the entries at a path, -1 where there is none."""
        parts = (path,) if isinstance(path, str) else tuple(path)
        entries = self.entries
        for number, part in enumerate(parts):
            if isinstance(part, str):
                entries = self._members_at(parts[:number], entries).named(part)
            else:
                entries = self._index.first_items(entries)
        return entries

    def inner(self, *paths: Path) -> "SpanRows":
        """Return the objects at the first of the paths; where there is none, one that holds nothing."""
        entries = self._first(paths)
        self._set_odd((entries >= 0) & ~self._index.are(entries, OBJECT))
        return self._with(entries)

    def or_inner(self, rows: Rows, path: Path) -> Rows:
        """Return these objects, and for those that hold nothing the ones of ``rows`` at a path."""
        is_gap = (self.entries < 0) | (self._index.tape[3][self.entries] == self.entries + 1)
        if not is_gap.any() or not isinstance(rows, SpanRows):
            return self
        return self._with(np.where(is_gap, rows.inner(path).entries, self.entries))

    def nested(self, rule: Callable[[Any], dict[str, Any]], paths: Sequence[Path], unless: str) -> "SpanRows":
        """Return the objects at the first of the paths; the record itself where there is none."""
        entries = self._first(paths)
        found = self._with(np.where(entries >= 0, entries, self.entries))
        self._set_odd((entries >= 0) & (~self._index.are(entries, OBJECT) | (found.at(unless) >= 0)))
        return found

    def text(self, *paths: Path) -> pa.Array:
        """Return the column of :func:`fields.text`."""
        chosen = np.full(len(self), -1, dtype=np.int32)
        for path in self._known(paths):
            entries = self.at(path)
            is_free = (chosen < 0) & (entries >= 0)
            is_word = self._index.are_words(entries)
            self._set_odd(is_free & ~is_word & ~self._index.are(entries, NULL))
            chosen = np.where(is_free & is_word & ~self._index.are_empty(entries), entries, chosen)
        return self._index.texts(chosen, INTEGER, ESCAPED)

    def tenant(self, *paths: Path) -> pa.Array:
        """Return the column of :func:`fields.tenant`."""
        entries = self._first(paths)
        self._set_odd((entries >= 0) & (~self._index.are_words(entries) | self._index.are_empty(entries)))
        return self._index.texts(entries, INTEGER, ESCAPED)

    def salt(self, *paths: Path) -> pa.Array:
        """Return the column of :func:`fields.salt`."""
        found = self.text(*paths)
        for value in found.unique().to_pylist():
            if value is not None and not columns.is_salt(value):
                self._set_odd(pc.fill_null(pc.equal(found, value), False).to_numpy(zero_copy_only=False))
        return found

    def texts_or(self, rule: Callable[[Any], str | None], path: Path) -> pa.Array:
        """Return the texts at a path."""
        entries = self.at(path)
        self._set_odd(~self._index.are(entries, TEXT, ESCAPED))
        return self._index.texts(entries, TEXT, ESCAPED)

    def one_of(self, path: Path, choices: Sequence[str]) -> pa.Array:
        """Return the column of :func:`fields.one_of`."""
        found = self.text(path)
        self._set_odd(~pc.or_(pc.is_null(found), pc.is_in(found, pa.array(choices))).to_numpy(zero_copy_only=False))
        return found

    def number(self, *paths: Path, scale: float = 1.0) -> pa.Array:
        """Return the column of :func:`fields.number`."""
        entries = self._first(paths)
        numbers, is_given = self._floats(entries)
        with np.errstate(invalid="ignore"):
            is_plain = is_given & ~np.signbit(numbers) & (numbers <= _WIDEST_EXACT)
        self._set_odd((entries >= 0) & ~is_plain)
        return pa.array(numbers * scale if scale != 1.0 else numbers, mask=~is_plain)

    def count(self, *paths: Path) -> pa.Array:
        """Return the column of :func:`fields.count`."""
        return self._integers(self._first(paths), None)

    def small_count(self, *paths: Path) -> pa.Array:
        """Return the column of :func:`fields.small_count`."""
        return self._integers(self._first(paths), _WIDEST_INT32).cast(pa.int32())

    def are_integers(self, *paths: Path) -> bool:
        """Say whether most rows have a whole number there; the others are odd."""
        entries = self._first(paths)
        is_integer = self._index.are(entries, INTEGER)
        if is_integer.sum() * 2 < len(self):
            return False
        self._set_odd(~is_integer)
        return True

    def flag(self, *paths: Path) -> pa.Array:
        """Return the column of :func:`fields.flag`."""
        entries = self._first(paths)
        is_true = self._index.are(entries, TRUE)
        self._set_odd((entries >= 0) & ~is_true & ~self._index.are(entries, FALSE))
        return pa.array(is_true)

    def hashes(self, *paths: Path) -> pa.Array:
        """Return the column of :func:`fields.hashes`; none is plain."""
        self._set_odd(self._first(paths) >= 0)
        return pa.nulls(len(self), pa.list_(pa.uint64()))

    def time(self, *paths: Path) -> pa.Array:
        """Return the column of :func:`fields.time`; null where the record is odd."""
        entries = self._first(paths)
        groups = [self._index.are(entries, kind) for kind in (TEXT, INTEGER, NUMBER)]
        most = max(range(3), key=lambda number: int(groups[number].sum()))
        chosen = np.where(groups[most], entries, -1)
        found = (self._times_of_texts, self._times_of_integers, self._times_of_floats)[most](chosen)
        self._set_odd(~found.is_valid().to_numpy(zero_copy_only=False))
        return found

    def prompts(
        self, rule: Callable[..., Any], names: PromptNames, *_: Sequence[Any]
    ) -> tuple[pa.Array, "SpanPrompts"]:
        """Return kind and prompt of each row: of chats and texts beside which no other content stands."""
        messages, texts = self._first([names.messages] if names.messages else []), self._first([names.prompt])
        is_chat = messages >= 0
        is_other = np.zeros(len(self), dtype=bool)
        for name in names.others:
            is_other |= self._first([name]) >= 0
        contents = np.where(is_chat, messages, texts)
        is_list = self._index.are(contents, LIST)
        self._set_odd(is_other | (contents < 0) | (is_chat & (texts >= 0)) | (is_chat != is_list))
        parts = (contents, self._first([names.tools]), self._first([names.template_args]))
        found = SpanPrompts(lambda is_canonical: self._index.prompts(*parts, is_canonical=is_canonical))
        self._set_odd(~found.stored.is_given)
        return pa.array(np.where(is_chat, "chat", "completion"), pa.string()), found

    def _with(self, entries: Entries) -> "SpanRows":
        return SpanRows(self._index, entries, self.places, self._is_odd)

    def _set_odd(self, mask: Any) -> None:
        self._is_odd[np.asarray(self.places)[mask]] = True

    def _members_at(self, parts: tuple[str | int, ...], entries: Entries) -> Members:
        found = self._members.get(parts)
        if found is None:
            found = self._members[parts] = self._index.members(entries)
            if not found.is_complete:
                self._set_odd(np.ones(len(self), dtype=bool))
        return found

    def _known(self, paths: Sequence[Path]) -> list[Path]:
        return [path for path in paths if (path if isinstance(path, str) else path[0]) in self.names]

    def _first(self, paths: Sequence[Path]) -> Entries:
        """Return the entries at the first of the paths that holds anything but null."""
        chosen = np.full(len(self), -1, dtype=np.int32)
        for path in self._known(paths):
            entries = self.at(path)
            is_taken = (chosen < 0) & (entries >= 0) & ~self._index.are(entries, NULL)
            chosen = np.where(is_taken, entries, chosen)
        return chosen

    def _integers(self, entries: Entries, most: int | None) -> pa.Array:
        numbers, is_given = self._index.integers(entries)
        if most is not None:
            is_given &= numbers <= most
        self._set_odd((entries >= 0) & ~is_given)
        return pa.array(numbers, mask=~is_given)

    def _floats(self, entries: Entries) -> tuple[npt.NDArray[np.float64], Marks]:
        """Return numbers, each the one next to what stands in the line."""
        digits = self._index.texts(entries, NUMBER, INTEGER)
        found = digits.cast(pa.float64())
        return found.fill_null(0.0).to_numpy(), found.is_valid().to_numpy(zero_copy_only=False)

    def _times_of_texts(self, entries: Entries) -> pa.Array:
        texts = self._index.texts(entries, TEXT, ESCAPED)
        found = times.of_texts(texts)
        if found is None:
            is_time = pc.fill_null(pc.match_substring_regex(texts, _ISO), False)
            found = times.of_texts(pc.if_else(is_time, texts, pa.scalar(None, pa.string())))
        return pa.nulls(len(texts), TIMESTAMP) if found is None else times.in_range(found)

    def _times_of_integers(self, entries: Entries) -> pa.Array:
        found = self._integers(entries, None)
        return _times(found.fill_null(0).to_numpy(), found.is_valid().to_numpy(zero_copy_only=False))

    def _times_of_floats(self, entries: Entries) -> pa.Array:
        return _times(*self._floats(entries))


class SpanBatch(Batch):
    """A batch of indexed lines; its places are those of the lines."""

    def __init__(self, index: LineIndex) -> None:
        super().__init__(())
        self._index = index
        self.is_odd = index.roots < 0

    def rows(self) -> SpanRows:
        """Return the records that are not odd."""
        places = np.flatnonzero(~self.is_odd)
        return SpanRows(self._index, self._index.roots[places], places, self.is_odd)

    def out(self) -> Marks | None:
        """Say which of the requests are odd."""
        mask = self.is_odd[np.asarray(self.places, dtype=np.int64)]
        return mask if mask.any() else None


def _times(numbers: npt.NDArray[Any], is_given: Marks) -> pa.Array:
    microseconds = times.microseconds_of(np.where(is_given, numbers, 0))
    return times.in_range(pa.array(microseconds, mask=~is_given).cast(TIMESTAMP))
