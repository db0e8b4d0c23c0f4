"""Where records lie inside a document that is a value already: lists that a format names, with what stands around them.

Reading documents is the business of ``documents.py``. No format's names.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

ELEMENTS = "item"


class Nest(NamedTuple):
    """A list of records inside a document.

    Attributes:
        records: the path of its elements; steps are parted by dots, ``item`` leads into the elements of a list.
        context: pairs of a field that each record gets, where it has none, and the path of its value, which stands on
            the way to the list; in a large document it counts only where it stands before the list.
    """

    records: str
    context: tuple[tuple[str, str], ...] = ()


def unfold(value: Any, nests: Sequence[Nest]) -> Iterator[Any]:
    """Yield the records of a document, each with its context; what holds no known list is a record itself."""
    if isinstance(value, list):
        for element in value:
            yield from unfold(element, nests)
        return
    is_nested = False
    for nest in nests:
        first, *rest = nest.records.split(".")
        if isinstance(value, dict) and isinstance(value.get(first), list):
            is_nested = True
            yield from _descend(value, [first, *rest], nest, (), {})
    if not is_nested:
        yield value


def with_context(record: Any, context: dict[str, Any]) -> Any:
    """Return a record with the fields of its context that it has no value of its own for."""
    if not isinstance(record, dict) or not context:
        return record
    return {**record, **{name: value for name, value in context.items() if record.get(name) is None}}


def _descend(
    value: Any, steps: list[str], nest: Nest, passed: tuple[str, ...], context: dict[str, Any]
) -> Iterator[Any]:
    if not steps:
        yield with_context(value, context)
        return
    step, *rest = steps
    if step == ELEMENTS:
        for element in value if isinstance(value, list) else [value]:
            yield from _descend(element, rest, nest, (*passed, step), context)
    elif isinstance(value, dict):
        if value.get(step) is not None:
            context = {**context, **_members(value, nest, passed)}
            yield from _descend(value[step], rest, nest, (*passed, step), context)
    else:
        yield value


def _members(value: dict[str, Any], nest: Nest, passed: tuple[str, ...]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, path in nest.context:
        steps = path.split(".")
        inner: Any = value if tuple(steps[: len(passed)]) == passed else None
        for step in steps[len(passed) :]:
            inner = inner.get(step) if isinstance(inner, dict) else None
        if inner is not None:
            found.setdefault(name, inner)
    return found
