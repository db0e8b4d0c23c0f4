"""Typed access to one field of many records at once: the rules of ``fields.py``, a column at a time.

Each column first looks whether all its values are of the plain kind that the rule of its field takes as it stands; then
nothing is left to do. If not, the rule is asked record by record, and keeps the reason for each record that it refuses.
So there is one set of rules, and a clean log pays for it once a column. Nothing here knows a format.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from warmup_tasks.errors import ConfigurationError
from warmup_tasks.identity import check_salt
from warmup_tasks.lake.schemas import TIMESTAMP
from warmup_tasks.sources import fields, times
from warmup_tasks.sources.faults import BadRecordError, Fault
from warmup_tasks.sources.fields import Path
from warmup_tasks.sources.prompts import NO_CONTENT, Prompt, PromptColumn, PromptNames

Faults = dict[int, tuple[Fault, str]]
Column: TypeAlias = "Sequence[Any] | pa.Array"
Numbers: TypeAlias = "Sequence[int] | npt.NDArray[np.int64]"
Marks: TypeAlias = "Sequence[bool] | npt.NDArray[np.bool_]"

_NONE = type(None)
_TEXTS: frozenset[type] = frozenset({str, _NONE})
_NUMBERS: frozenset[type] = frozenset({int, float, _NONE})
_INTEGERS: frozenset[type] = frozenset({int, _NONE})
_FLAGS: frozenset[type] = frozenset({bool, _NONE})
_OBJECTS: frozenset[type] = frozenset({dict, _NONE})
_WIDEST_INT32, _WIDEST_INT64, _WIDEST_EXACT = 2**31 - 1, 2**63 - 1, 2**53
_FEW = 16  # for so few records a vector costs more than it saves


class Rows:
    """Objects of one kind, each a record or a part of one, with the faults found in them.

    Attributes:
        objects: the objects.
        places: the place of each in the batch that was read.
        faults: place → why that record is refused; the first reason counts.
    """

    def __init__(self, objects: Sequence[Mapping[str, Any]], places: Numbers, faults: Faults) -> None:
        self.objects, self.places, self.faults = objects, places, faults

    @cached_property
    def names(self) -> set[str]:
        """The names that the objects have."""
        return set().union(*self.objects)

    def __len__(self) -> int:
        return len(self.objects)

    def where(self, is_wanted: Iterable[bool]) -> "Rows":
        """Return the rows for which ``is_wanted`` holds."""
        chosen = [row for row, wanted in enumerate(is_wanted) if wanted]
        if len(chosen) == len(self.objects):
            return self
        return Rows([self.objects[row] for row in chosen], [self.places[row] for row in chosen], self.faults)

    def split(self, is_wanted: Marks) -> tuple["Rows", "Rows"]:
        """Return the rows for which ``is_wanted`` holds, and the others."""
        return self.where(is_wanted), self.where(not wanted for wanted in is_wanted)

    def fill(self, column: Column, other: Callable[["Rows"], Column]) -> Column:
        """Return a column with its gaps filled by what ``other`` makes of the rows that have one."""
        is_gap = [value is None for value in column]
        if not any(is_gap):
            return column
        found = iter(other(self.where(is_gap)))
        return [next(found) if value is None else value for value in column]

    def beside(self, objects: Sequence[Mapping[str, Any]]) -> "Rows":
        """Return other objects of the same records."""
        return Rows(objects, self.places, self.faults)

    def refuse(self, row: int, error: BadRecordError) -> None:
        """Keep why the record of a row is refused."""
        self.faults.setdefault(self.places[row], (error.fault, error.detail))

    def map(self, rule: Callable[..., Any], *columns: Sequence[Any], default: Any = None) -> list[Any]:
        """Return ``rule(object, *values)`` of each row; ``default`` where the rule refuses the record."""
        try:
            return list(map(rule, self.objects, *columns))
        except BadRecordError:
            return [self._ask(row, rule, [column[row] for column in columns], default) for row in range(len(self))]

    def values(self, *paths: Path) -> list[Any]:
        """Return of each row the value of the first path that is present and not null."""
        found: list[Any] | None = None
        for path in paths:
            if (path if isinstance(path, str) else path[0]) not in self.names:
                continue
            if found is None:
                found = _values(self.objects, path)
            elif None in found:
                others = _values(self.objects, path)
                found = [other if value is None else value for value, other in zip(found, others, strict=True)]
        return [None] * len(self) if found is None else found

    def has(self, *paths: Path) -> Marks:
        """Say of each row whether it has a value there that is not null."""
        return [value is not None for value in self.values(*paths)]

    def has_text(self, *paths: Path) -> Marks:
        """Say of each row whether it has a value there that is neither null nor an empty text."""
        return [value is not None and value != "" for value in self.values(*paths)]

    def equals(self, path: Path, text: str) -> Marks:
        """Say of each row whether the value is that text."""
        return [value == text for value in self.values(path)]

    def each(self, rule: Callable[[int, Any], None]) -> None:
        """Hand each record with its place to a rule that reads it by itself."""
        for place, record in zip(self.places, self.objects, strict=True):
            rule(place, record)

    def only_names(self, known: set[str], free: str) -> None:
        """Refuse records with a name that is not known and does not begin as free ones do."""
        if self.names <= known:
            return
        for row, record in enumerate(self.objects):
            unknown = sorted(name for name in record if name not in known and not name.startswith(free))
            if unknown:
                detail = ", ".join(name[:40] for name in unknown[:5])
                self.refuse(row, BadRecordError(Fault.UNKNOWN_FIELD, detail))

    def inner(self, *paths: Path) -> "Rows":
        """Return the objects at the first of the paths (:func:`fields.mapping`); an empty one where there is none."""
        return self.beside(self.mapping(*paths))

    def or_inner(self, rows: "Rows", path: Path) -> "Rows":
        """Return these objects, and where one is empty, the one that ``rows`` have at a path."""
        if all(self.objects):
            return self
        return self.beside(rows.fill([thing or None for thing in self.objects], lambda these: these.mapping(path)))

    def nested(self, rule: Callable[[Any], dict[str, Any]], paths: Sequence[Path], unless: str) -> "Rows":
        """Return the objects at the first of the paths; a rule tells where one is none, or holds one named ``unless``.

        The rule gives the record itself where no path holds anything.
        """
        found = self.values(*paths)
        if all(type(value) is dict and unless not in value for value in found):
            return self.beside(found)
        return self.beside(self.map(rule, default={}))

    def prompts(
        self, rule: Callable[..., Any], names: PromptNames, *columns: Sequence[Any]
    ) -> tuple[Column, Sequence[Prompt] | PromptColumn]:
        """Return what ``rule(object, *values)`` says is kind and prompt of each row.

        Args:
            rule: the rule.
            names: under which names it finds plain chats and texts.
            columns: values that it asks for besides.
        """
        found = self.map(rule, *columns, default=("unknown", NO_CONTENT))
        return [kind for kind, _ in found], [prompt for _, prompt in found]

    def texts_or(self, rule: Callable[[Any], str | None], path: Path) -> list[str | None]:
        """Return the texts at a path; a rule tells of each row, where one has none."""
        values = _values(self.objects, path)
        return values if _are(values, {str}) else self.map(rule)

    def one_of(self, path: Path, choices: Sequence[str]) -> list[str | None]:
        """Return the column of :func:`fields.one_of`."""
        values = self.values(path)
        is_plain = _are(values, _TEXTS) and set(values) <= {None, *choices}
        return values if is_plain else self._by(lambda record: fields.one_of(record, path, choices), ())

    def are_integers(self, *paths: Path) -> bool:
        """Say whether the values are whole numbers."""
        return _are(self.values(*paths), {int})

    def text(self, *paths: Path) -> list[str | None]:
        """Return the column of :func:`fields.text`."""
        values = self.values(*paths)
        return values if _are(values, _TEXTS) and "" not in values else self._by(fields.text, paths)

    def tenant(self, *paths: Path) -> list[str | None]:
        """Return the column of :func:`fields.tenant`."""
        values = self.values(*paths)
        return values if _are(values, _TEXTS) and "" not in values else self._by(fields.tenant, paths)

    def salt(self, *paths: Path) -> list[str | None]:
        """Return the column of :func:`fields.salt`."""
        values = self.values(*paths)
        is_plain = _are(values, _TEXTS) and all(is_salt(value) for value in set(values) if value is not None)
        return values if is_plain else self._by(fields.salt, paths)

    def number(self, *paths: Path, scale: float = 1.0) -> list[float | None]:
        """Return the column of :func:`fields.number`."""
        values = self.values(*paths)
        given = [value for value in values if value is not None]
        if not given:
            return values
        if _are(given, _NUMBERS) and min(given) >= 0 and max(given) <= _WIDEST_EXACT and all(map(math.isfinite, given)):
            return [None if value is None else value * scale for value in values] if scale != 1.0 else values
        return self._by(fields.number, paths, scale=scale)

    def count(self, *paths: Path) -> list[int | None]:
        """Return the column of :func:`fields.count`."""
        values = self.values(*paths)
        return values if _are_counts(values, _WIDEST_INT64) else self._by(fields.count, paths)

    def small_count(self, *paths: Path) -> list[int | None]:
        """Return the column of :func:`fields.small_count`."""
        values = self.values(*paths)
        return values if _are_counts(values, _WIDEST_INT32) else self._by(fields.small_count, paths)

    def flag(self, *paths: Path) -> list[bool]:
        """Return the column of :func:`fields.flag`."""
        values = self.values(*paths)
        return [value is True for value in values] if _are(values, _FLAGS) else self._by(fields.flag, paths)

    def mapping(self, *paths: Path) -> list[dict[str, Any]]:
        """Return the column of :func:`fields.mapping`; empty where the record is refused."""
        values = self.values(*paths)
        if not _are(values, _OBJECTS):
            values = self._by(fields.mapping, paths)
        return [{} if value is None else value for value in values]

    def hashes(self, *paths: Path) -> list[list[int] | None]:
        """Return the column of :func:`fields.hashes`."""
        values = self.values(*paths)
        return values if _are(values, {_NONE}) else self._by(fields.hashes, paths)

    def time(self, *paths: Path) -> Column:
        """Return the column of :func:`fields.time`; null where the record is refused."""
        if len(self) >= _FEW:
            values = self.values(*paths)
            kinds = set(map(type, values))
            found = None
            if kinds == {str}:
                found = times.of_texts(pa.array(values, pa.string()))
            elif kinds in ({int}, {float}):
                found = times.of_numbers(values)
            if found is not None and times.in_range(found).null_count:
                found = None
            if found is not None:
                return found
        moments = self._by(fields.time, paths)
        return moments if len(self) < _FEW else pa.array(moments, TIMESTAMP)

    def _by(self, rule: Callable[..., Any], paths: Sequence[Path], **options: Any) -> list[Any]:
        return [self._ask(row, rule, paths, None, **options) for row in range(len(self))]

    def _ask(self, row: int, rule: Callable[..., Any], arguments: Sequence[Any], default: Any, **options: Any) -> Any:
        try:
            return rule(self.objects[row], *arguments, **options)
        except BadRecordError as error:
            self.refuse(row, error)
            return default


def _values(objects: Sequence[Mapping[str, Any]], path: Path) -> list[Any]:
    if isinstance(path, str):
        return [thing.get(path) for thing in objects]
    values: Sequence[Any] = objects
    for part in path:
        if isinstance(part, int):
            values = [value[part] if isinstance(value, list) and len(value) > part else None for value in values]
        else:
            values = [value.get(part) if isinstance(value, dict) else None for value in values]
    return list(values)


def _are(values: Sequence[Any], kinds: Iterable[type]) -> bool:
    return set(map(type, values)) <= set(kinds)


def _are_counts(values: Sequence[Any], most: int) -> bool:
    if not _are(values, _INTEGERS):
        return False
    given = [value for value in values if value is not None]
    return not given or (min(given) >= 0 and max(given) <= most)


def is_salt(value: str) -> bool:
    """Say whether engines accept a salt."""
    try:
        check_salt(value)
    except ConfigurationError:
        return False
    return True


def as_list(column: Column) -> list[Any]:
    """Return a column as a list."""
    return column.to_pylist() if isinstance(column, pa.Array) else list(column)


def coalesce(column: Column, other: Column) -> Column:
    """Return a column with its gaps filled from another one."""
    if isinstance(column, pa.Array) and isinstance(other, pa.Array):
        return pc.coalesce(column, other)
    return [two if one is None else one for one, two in zip(as_list(column), as_list(other), strict=True)]
