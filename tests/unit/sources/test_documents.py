"""Documents and tables: each record numbered by position, nothing lost in silence, memory bounded."""

import gzip
import tracemalloc
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warmup_tasks.sources import containers, documents, reading
from warmup_tasks.sources.containers import Container
from warmup_tasks.sources.faults import Fault
from warmup_tasks.sources.nests import Nest
from warmup_tasks.sources.reading import DamagedFileError

NESTS = (Nest("groups.item.rows.item", (("owner", "groups.item.owner"), ("day", "day"))), Nest("data.item"))
NESTED = {
    "day": "monday",
    "groups": [
        {"owner": "a", "rows": [{"n": 1}, {"n": 2, "owner": "own"}]},
        {"rows": [{"n": 3}]},
        {"owner": {"c": 1}, "rows": [7, {"n": 4}]},
    ],
}
FOUND = [
    {"n": 1, "owner": "a", "day": "monday"},
    {"n": 2, "owner": "own", "day": "monday"},
    {"n": 3, "day": "monday"},
    Fault.NOT_AN_OBJECT,
    {"n": 4, "owner": {"c": 1}, "day": "monday"},
]


def blocks(data: bytes, size: int = 100_000) -> Iterator[bytes]:
    return iter([data[start : start + size] for start in range(0, len(data), size)])


def seen(data: bytes, limit: int, nests: Sequence[Nest] = NESTS) -> list[Any]:
    """What stands in a document: its records, or their faults."""
    raws = list(documents.records(blocks(data), nests, limit))
    assert [raw.line.number for raw in raws] == list(range(1, len(raws) + 1))
    return [raw.line.fault or raw.value for raw in raws]


@pytest.mark.parametrize("limit", [10**6, 60])  # held whole, and gone through
@pytest.mark.parametrize("indent", [True, False])
def test_nested_records_come_with_their_context(limit: int, indent: bool) -> None:
    data = orjson.dumps(NESTED, option=orjson.OPT_INDENT_2 if indent else 0)
    assert seen(data, limit) == FOUND
    assert seen(b"\xef\xbb\xbf" + data, limit) == FOUND
    assert seen(orjson.dumps([NESTED, {"data": [{"n": 5}]}]), 10**6) == [*FOUND, {"n": 5}]
    assert seen(data + b"\n" + data, limit) == [*FOUND, *FOUND]


@pytest.mark.parametrize("limit", [10**6, 8])
def test_what_holds_no_known_list_is_a_record_itself(limit: int) -> None:
    assert seen(b'{"n":1}', limit) == [{"n": 1}]
    assert seen(b'{"n":1}\n{"n":\n2}', limit) == [{"n": 1}, {"n": 2}]
    assert seen(b'[{"n":1},{"n":2}]', limit) == [{"n": 1}, {"n": 2}]
    assert seen(b'{"data":3}', 100) == [{"data": 3}]
    assert seen(b'{"data":[]}', limit) == []
    assert seen(b'"text"', limit) == [Fault.NOT_AN_OBJECT]


def test_64_bit_numbers_are_exact_both_ways() -> None:
    data = b'{"data":[{"n":18446744073709551615},{"n":9223372036854775809}]}'
    assert seen(data, 10**6) == seen(data, 30) == [{"n": 2**64 - 1}, {"n": 2**63 + 1}]


def test_a_record_beyond_the_limit_is_a_fault_and_the_rest_is_read() -> None:
    rows = [{"n": 1}, {"x": ["y" * 1000] * 1000}, {"n": 2}]
    assert seen(orjson.dumps({"data": rows}), 300_000) == [{"n": 1}, Fault.RECORD_TOO_LONG, {"n": 2}]
    assert seen(orjson.dumps(rows), 300_000) == [{"n": 1}, Fault.RECORD_TOO_LONG, {"n": 2}]


def test_one_text_without_end_is_not_held() -> None:
    assert seen(b'{"data":[{"n":1},{"x":"' + b"y" * 3_000_000, 100_000) == [{"n": 1}, Fault.RECORD_TOO_LONG]


@pytest.mark.parametrize("limit", [10**6, 10])
def test_a_document_that_breaks_gives_what_came_before_and_one_fault(limit: int) -> None:
    start = b'{"data":[{"n":1},{"n":2}'
    assert seen(start, limit) == [{"n": 1}, {"n": 2}, Fault.TRUNCATED_DOCUMENT]
    assert seen(start + b',{"n":}]}', limit) == [{"n": 1}, {"n": 2}, Fault.NOT_JSON]
    assert seen(start + b',{"n":"\xff"}]}', limit) == [{"n": 1}, {"n": 2}, Fault.NOT_UTF8]


def test_a_compressed_document_cut_short_gives_what_can_be_read(tmp_path: Path) -> None:
    rows = [{"n": number, "x": f"{number * 7919 % 1009}"} for number in range(20_000)]
    path = tmp_path / "log.json.gz"
    path.write_bytes(gzip.compress(orjson.dumps({"data": rows}))[:-20_000])
    (file,) = reading.discover(str(path))
    raws = list(documents.records(file.blocks(), NESTS, 10**7))
    assert raws[-1].line.fault is Fault.CUT_SHORT
    assert len(raws) > 1000
    assert [raw.value for raw in raws[:-1]] == rows[: len(raws) - 1]


def test_a_large_document_is_never_held_whole() -> None:
    row = orjson.dumps({"n": 1, "x": "y" * 500}) + b","
    content = (row * 200 for _ in range(400))  # 40 MB

    def document() -> Iterator[bytes]:
        yield b'{"data":['
        yield from content
        yield row[:-1] + b"]}"

    tracemalloc.start()
    count = sum(raw.line.fault is None for raw in documents.records(document(), NESTS, 10**6))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 80_001
    assert peak < 8 * 10**6


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=60) | st.text('[]{}:,"n1data item', max_size=40).map(str.encode), st.integers(1, 80))
def test_no_bytes_crash_the_reader(data: bytes, limit: int) -> None:
    for raw in documents.records(blocks(data, 7), NESTS, limit):
        assert raw.line.fault is not None or isinstance(raw.value, dict)
    for raw in containers.csv_records(blocks(data, 7), limit):
        assert raw.line.fault is not None or isinstance(raw.value, dict)
    containers.kind_of(data)
    documents.beginning(data)


def test_records_on_lines_keep_their_lines_numbers_until_a_line_holds_several() -> None:
    lines = [b'{"n":1}', b"", b'{"n":2}', orjson.dumps(NESTED), b"broken", b'{"n":3}']
    raws = reading.json_records(reading.lines(iter([b"\n".join(lines)])))
    found = [(raw.line.number, raw.line.fault) for raw in documents.unfolded(raws, NESTS)]
    numbers = [number for number, _ in found]
    assert numbers == [1, 3, 4, 5, 6, 7, 8, 9, 10]
    assert [fault for _, fault in found if fault] == [Fault.NOT_AN_OBJECT, Fault.NOT_JSON]


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        (b'{"a": 1}\n{"b', Container.LINES),
        (b'{"a": 1}', Container.LINES),
        (b'broken {\n{"a": 1}\n{"a": 2}\n', Container.LINES),
        (b'{"a": {"b\n{"a": 1}\n{"a": 2}\n', Container.LINES),
        (b'{"a": {"b": [1, 2, 3', Container.DOCUMENT),
        (b'{\n  "a": 1,\n  "b": [\n    {}\n  ]\n}\n', Container.DOCUMENT),
        (b'  [\n{"a": 1},\n{"a": 2}\n]', Container.DOCUMENT),
        (b'[{"a": 1}]', Container.DOCUMENT),
        (b'id,"trace_id",type,start_time\n1,2,3,4\n', Container.CSV),
        (b"INFO 11-26 02:00:00, hello, you, there\n", Container.LINES),
        (b"one two three\n", Container.LINES),
        (b"PAR1\x15\x04", Container.PARQUET),
        (b"", Container.LINES),
    ],
)
def test_containers_are_told_by_their_first_bytes(head: bytes, kind: Container) -> None:
    assert containers.kind_of(head) is kind


CSV = b"\r\n".join(
    [
        b'id,text,"count",more',
        b'1,"two',
        b"",
        b'lines, ""quoted""",3,',
        b"",
        b"2,caf\xe9,3,x",
        b"3,few",
        b'4,"open "quotes",3,x',
        b"5,plain,18446744073709551615,\xc3\xa9",
        b"6,nul\0,1,1",
        b'7,"no end,3',
    ]
)


def test_rows_of_csv_with_line_ends_in_cells_and_bad_rows() -> None:
    for size in (1, 7, 1000):
        raws = list(containers.csv_records(blocks(CSV, size), 1000))
        assert [(raw.line.number, raw.line.fault or raw.value) for raw in raws] == [
            (2, {"id": "1", "text": 'two\r\n\r\nlines, "quoted"', "count": "3"}),
            (6, Fault.NOT_UTF8),
            (7, Fault.BAD_ROW),
            (8, Fault.BAD_ROW),
            (9, {"id": "5", "text": "plain", "count": "18446744073709551615", "more": "é"}),
            (10, Fault.NUL_BYTE),
            (11, Fault.BAD_ROW),
        ]


def test_a_cell_beyond_csvs_own_limit_is_read() -> None:
    long = b"x" * 1_000_000
    (raw,) = containers.csv_records(iter([b"a,b,c,d\n1,2,3," + long + b"\n"]), 2_000_000)
    assert len(raw.value["d"]) == 1_000_000


def test_a_csv_whose_bytes_end_too_early_says_so() -> None:
    def cut() -> Iterator[bytes]:
        yield b"a,b,c,d\n1,2,3,4\n"
        raise DamagedFileError(Fault.CUT_SHORT)

    raws = list(containers.csv_records(cut(), 1000))
    assert [raw.line.fault for raw in raws] == [None, Fault.CUT_SHORT]


def test_rows_of_parquet_are_plain_values(tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    table = pa.table(
        {
            "n": pa.array([2**64 - 1, None], pa.uint64()),
            "time": pa.array([1795651200123456789, 0], pa.timestamp("ns")),
            "zoned": pa.array([1795651200123456, 0], pa.timestamp("us", "Europe/Berlin")),
            "map": pa.array([[("input", 5)], []], pa.map_(pa.string(), pa.int64())),
            "list": pa.array([[{"role": "user"}], None]),
        }
    )
    pq.write_table(table, path)
    (file,) = reading.discover(str(path))
    first, second = containers.parquet_records(file)
    assert first.value == {
        "n": 2**64 - 1,
        "time": "2026-11-26T00:00:00.123456",
        "zoned": "2026-11-26T01:00:00.123456+01:00",
        "map": {"input": 5},
        "list": [{"role": "user"}],
    }
    assert (first.line.number, second.line.number, second.value["n"]) == (1, 2, None)
    path.write_bytes(path.read_bytes()[:-9])
    (file,) = reading.discover(str(path))
    assert [raw.line.fault for raw in containers.parquet_records(file)] == [Fault.DAMAGED]
