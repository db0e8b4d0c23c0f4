"""A column says of each record what the rule of its field says of it alone; a batch, what its records say alone."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warmup_tasks.sources import columns, fields
from warmup_tasks.sources.base import Batch, BatchSource, Request
from warmup_tasks.sources.faults import BadRecordError, Fault
from warmup_tasks.sources.registry import SOURCES

PATHS = ("a", "b", ("c", "d"))
ZONES = ("", "Z", "z", "+00:00", "-05:30", "+0530", "+05", " UTC")
MOMENTS = st.integers(630_720_000, 7_573_824_000).map(
    lambda second: (
        datetime(1970, 1, 1, tzinfo=UTC).replace(tzinfo=None) + timedelta(seconds=second, microseconds=second % 10**6)
    )
)
TIMES = st.one_of(
    st.builds(
        lambda moment, separator, zone, parts: moment.isoformat(separator, parts) + zone,
        MOMENTS,
        st.sampled_from("T "),
        st.sampled_from(ZONES),
        st.sampled_from(["auto", "hours", "minutes", "seconds", "milliseconds", "microseconds"]),
    ),
    MOMENTS.map(lambda moment: moment.date().isoformat()),
    MOMENTS.flatmap(
        lambda moment: st.sampled_from([1, 10**3, 10**6, 10**9]).map(lambda per_s: int(moment.timestamp() * per_s))
    ),
    MOMENTS.map(lambda moment: moment.timestamp()),
    st.floats(),
    st.integers(-10, 10**21),
    st.text(max_size=6),
)
NUMBERS = st.one_of(
    st.integers(0, 2**64), st.integers(2**31 - 2, 2**31 + 1), st.integers(2**53 - 2, 2**53 + 2), st.floats(),
    st.sampled_from(["12", "1e3", "x", True, -1, 2**63 - 1, 2**63]),
)  # fmt: skip
TEXTS = st.one_of(st.text(max_size=4), st.sampled_from(["", "a/b", "salt", 7, True, 1.5, [], {}, "@" * 200]))
OBJECTS = st.one_of(
    st.dictionaries(st.sampled_from("xy"), st.integers(0, 9), max_size=2),
    st.sampled_from(["", "{}", "{", "[]", [1], 0]),
)
HASHES = st.one_of(st.lists(st.integers(0, 2**64 - 1), max_size=3), st.sampled_from([[-1], [True], ["1"], [1.0], "x"]))
FLAGS = st.sampled_from([True, False, 1, "true"])


def objects(values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[dict[str, Any]]]:
    present = st.none() | values
    one = st.fixed_dictionaries({}, optional={"a": present, "b": present, "c": present.map(lambda value: {"d": value})})
    return st.lists(one, max_size=24).map(lambda many: orjson.loads(orjson.dumps(many, option=orjson.OPT_NON_STR_KEYS)))


def finite(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return values.filter(lambda value: not isinstance(value, int) or abs(value) < 2**64)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("text", TEXTS), ("tenant", TEXTS), ("salt", TEXTS), ("number", NUMBERS), ("count", NUMBERS),
        ("small_count", NUMBERS), ("flag", FLAGS), ("mapping", OBJECTS), ("hashes", HASHES), ("time", TIMES),
    ],
)  # fmt: skip
@settings(max_examples=150, deadline=None)
@given(st.data(), st.booleans())
def test_a_column_is_the_rule_of_its_field(
    name: str, values: st.SearchStrategy[Any], data: st.DataObject, is_uniform: bool
) -> None:
    kind = data.draw(st.sampled_from([str, int, float])) if is_uniform else object
    records = data.draw(objects(finite(values).filter(lambda value: isinstance(value, kind))))
    rows = columns.Rows(records, range(len(records)), {})
    column = getattr(rows, name)(*PATHS)
    rule: Callable[..., Any] = getattr(fields, name)
    for place, record in enumerate(records):
        expected, fault = outcome(rule, record, *PATHS)
        assert rows.faults.get(place) == fault
        found = column[place]
        if fault is None:
            assert (found.as_py() if name == "time" and len(records) >= 16 else found) == expected


def test_times_of_every_unit_are_exact_as_columns() -> None:
    start = datetime(2026, 11, 26, 2, 3, 4, 567_891, UTC)
    for per_s in (1, 10**3, 10**6, 10**9):
        whole = [int((start + timedelta(days=n)).timestamp()) * per_s + per_s // 7 for n in range(40)]
        for values in (whole, [float(value) for value in whole], [str(value) for value in whole]):
            records = [{"a": value} for value in values]
            column = columns.Rows(records, range(40), {}).time("a")
            assert [moment.as_py() for moment in column] == [fields.time(record, "a") for record in records]


NAMES = (
    "record", "time", "timestamp", "request", "response", "messages", "prompt", "input", "output", "model", "tools",
    "usage", "status", "tenant", "cache_salt", "request_id", "choices", "session_id", "metadata", "base_model", "user",
)  # fmt: skip
SCALARS = st.none() | st.booleans() | st.integers(-5, 2**40) | st.text(max_size=5) | st.sampled_from(
    ["request", "feedback", "2026-11-26T02:00:00Z", 1795651200, "r1", "{}"]
)  # fmt: skip
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
    max_leaves=5,
)


@pytest.mark.parametrize(
    "source", [source for source in SOURCES if isinstance(source, BatchSource)], ids=lambda source: source.name
)
@settings(max_examples=150, deadline=None)
@given(st.lists(st.dictionaries(st.sampled_from(NAMES), ANYTHING, max_size=7), max_size=20))
def test_a_batch_says_of_each_record_what_it_says_alone(source: BatchSource, records: list[dict[str, Any]]) -> None:
    batch = Batch(records)
    source.read_batch(batch)
    places = list(batch.places)
    for place, record in enumerate(records):
        alone, fault = outcome(source.read_record, record)
        assert batch.faults.get(place) == fault
        if isinstance(alone, Request):
            assert batch.request(places.index(place)) == alone
        elif fault is None:
            assert place in batch.not_requests or place in dict(batch.feedback)


def outcome(rule: Callable[..., Any], *arguments: Any) -> tuple[Any, tuple[Fault, str] | None]:
    try:
        return rule(*arguments), None
    except BadRecordError as error:
        return None, (error.fault, error.detail)
