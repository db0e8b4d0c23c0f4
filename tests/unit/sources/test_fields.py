"""One UTC time line, and fields that are what they say."""

from datetime import UTC, datetime
from typing import Any

import pytest

from warmup_tasks.sources import fields
from warmup_tasks.sources.faults import BadRecordError, Fault

MOMENT = datetime(2026, 11, 26, 2, 0, 0, 123456, tzinfo=UTC)


@pytest.mark.parametrize(
    "value",
    [
        1795658400.123456,
        1795658400123456,
        1795658400123456789,
        "1795658400123456",
        "1795658400.123456",
        "2026-11-26T02:00:00.123456Z",
        "2026-11-26T02:00:00.123456",
        "2026-11-26 02:00:00,123456",
        "2026-11-26 02:00:00.123456 UTC",
        "2026-11-26T03:00:00.123456+01:00",
        "2026-11-25T20:00:00.123456-06:00",
        "2026-11-26T02:00:00.123456789z",
    ],
)
def test_every_spelling_of_a_moment_is_the_same_moment(value: Any) -> None:
    assert fields.parse_time(value, "time") == MOMENT


@pytest.mark.parametrize("value", [1795658400, 1795658400000, "1795658400", "2026-11-26T02:00Z"])
def test_whole_seconds_and_milliseconds(value: Any) -> None:
    assert fields.parse_time(value, "time") == MOMENT.replace(microsecond=0)


def test_a_daylight_saving_change_neither_folds_nor_tears_the_time_line() -> None:
    texts = ["2026-10-25T02:59:59+02:00", "2026-10-25T02:00:00+01:00", "2026-10-25T02:59:59+01:00"]
    moments = [fields.parse_time(text, "time") for text in texts]
    assert [(later - moments[0]).total_seconds() for later in moments] == [0, 1, 3600]


@pytest.mark.parametrize(
    "value", [0, -5, 1e300, float("nan"), "soon", "0001-01-01T00:00:00+23:00", 10**21, 12345, "9" * 400]
)
def test_what_is_no_time_is_refused_without_a_crash(value: Any) -> None:
    with pytest.raises(BadRecordError) as caught:
        fields.parse_time(value, "time")
    assert caught.value.fault is Fault.BAD_TIME


@pytest.mark.parametrize("value", [True, [1], {"s": 1}])
def test_a_time_of_another_type_is_a_type_fault(value: Any) -> None:
    with pytest.raises(BadRecordError) as caught:
        fields.parse_time(value, "time")
    assert caught.value.fault is Fault.BAD_TYPE


def test_counts_are_exact_or_refused() -> None:
    assert fields.count({"n": 512}, "n") == 512
    assert fields.count({"n": "512"}, "n") == 512
    assert fields.count({"n": None}, "n") is None
    assert fields.count({}, "n") is None
    for value, fault in (([], Fault.BAD_TYPE), (True, Fault.BAD_TYPE), (-1, Fault.BAD_VALUE), (1.5, Fault.BAD_VALUE)):
        with pytest.raises(BadRecordError) as caught:
            fields.count({"n": value}, "n")
        assert caught.value.fault is fault


def test_the_first_name_that_is_present_counts() -> None:
    record = {"b": None, "c": {"d": "deep"}, "e": "late"}
    assert fields.text(record, "a", "b", ("c", "d"), "e") == "deep"


def test_salts_that_no_engine_accepts_are_refused_and_an_empty_one_is_none() -> None:
    assert fields.salt({"cache_salt": ""}, "cache_salt") is None
    assert fields.salt({"cache_salt": "ab12"}, "cache_salt") == "ab12"
    for value in ("a@b", "a/b", "x" * 129):
        with pytest.raises(BadRecordError) as caught:
            fields.salt({"cache_salt": value}, "cache_salt")
        assert caught.value.fault is Fault.BAD_SALT
        assert value not in str(caught.value)


def test_an_empty_tenant_is_refused_and_odd_ones_are_kept() -> None:
    for name in ("acme/eu", "a@b", "x" * 200, "_default"):
        assert fields.tenant({"tenant": name}, "tenant") == name
    assert fields.tenant({}, "tenant") is None
    with pytest.raises(BadRecordError) as caught:
        fields.tenant({"tenant": ""}, "tenant")
    assert caught.value.fault is Fault.EMPTY_TENANT
