"""Files and lines: nothing that goes wrong in one line costs another one."""

import gzip
import io
import zlib
from pathlib import Path

import fsspec
import pyarrow as pa
import pytest

from warmup_tasks.errors import ConfigurationError
from warmup_tasks.sources import reading
from warmup_tasks.sources.faults import Fault

GOOD = b'{"a": 1}'


def seen(path: Path, **options: int) -> list[tuple[int, str | None]]:
    """Line numbers with their fault; None for a record that was read."""
    (file,) = reading.discover(str(path))
    raws = reading.json_records(reading.lines(file.blocks(), **options))
    return [(raw.line.number, raw.line.fault) for raw in raws]


def write(tmp_path: Path, data: bytes, name: str = "log.jsonl") -> Path:
    path = tmp_path / name
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("bad", "fault"),
    [
        (b'{"a": "b\0c"}', Fault.NUL_BYTE),
        (b"\0\0\0\0", Fault.NUL_BYTE),
        (b'{"a": "caf\xe9"}', Fault.NOT_UTF8),
        (b"no json", Fault.NOT_JSON),
        (b'{"a": "\\ud800"}', Fault.NOT_JSON),
        (b"[" * 5000, Fault.NOT_JSON),
        (b"[1]", Fault.NOT_AN_OBJECT),
        (b"3", Fault.NOT_AN_OBJECT),
    ],
)
def test_a_bad_line_is_named_and_the_rest_is_read(tmp_path: Path, bad: bytes, fault: Fault) -> None:
    path = write(tmp_path, b"\n".join([GOOD, bad, GOOD, b""]))
    assert seen(path) == [(1, None), (2, fault), (3, None)]


def test_a_truncated_last_line_is_told_from_bad_json_and_a_whole_one_without_line_end_is_read(tmp_path: Path) -> None:
    assert seen(write(tmp_path, GOOD + b'\n{"a": 1, "b')) == [(1, None), (2, Fault.TRUNCATED_LINE)]
    assert seen(write(tmp_path, GOOD + b"\n" + GOOD)) == [(1, None), (2, None)]


def test_a_line_beyond_the_limit_is_hashed_and_counted_but_not_held(tmp_path: Path) -> None:
    long = b'{"a": "' + b"x" * 10_000_000 + b'"}'
    path = write(tmp_path, GOOD + b"\n" + long + b"\n" + GOOD + b"\n")
    (file,) = reading.discover(str(path))
    lines = list(reading.lines(file.blocks()))
    assert [line.fault for line in lines] == [None, Fault.LINE_TOO_LONG, None]
    assert (lines[1].data, lines[1].size_bytes) == (b"", len(long))
    assert lines[1].digest() == reading.Line(1, long, len(long)).digest()
    assert seen(path, max_line_bytes=20_000_000) == [(1, None), (2, None), (3, None)]


def test_blank_lines_are_no_records_but_count_as_lines(tmp_path: Path) -> None:
    assert seen(write(tmp_path, b"\xef\xbb\xbf" + GOOD + b"\r\n\n  \n" + GOOD + b"\r\n")) == [(1, None), (4, None)]


def test_compression_is_known_by_content_not_by_name(tmp_path: Path) -> None:
    data = (GOOD + b"\n") * 30_000
    zstd = pa.Codec("zstd").compress(data, asbytes=True)
    for packed in (data, gzip.compress(data), gzip.compress(data) + gzip.compress(data), zstd, zstd + zstd):
        found = seen(write(tmp_path, packed))
        assert len(found) in (30_000, 60_000)
        assert {fault for _, fault in found} == {None}


@pytest.mark.parametrize("codec", ["gzip", "zstd"])
def test_a_compressed_file_cut_short_gives_what_can_be_read_and_one_fault(tmp_path: Path, codec: str) -> None:
    data = b"".join(b'{"a": %d}\n' % (number * 7_919_317 % 1_000_003) for number in range(50_000))
    packed = gzip.compress(data) if codec == "gzip" else pa.Codec("zstd").compress(data, asbytes=True)
    found = seen(write(tmp_path, packed[: len(packed) // 2]))
    assert found[-1][1] is Fault.CUT_SHORT
    assert [fault for _, fault in found[:-1]] == [None] * (len(found) - 1)
    assert len(found) > 10_000


def test_a_gzip_cut_at_a_line_end_still_says_that_something_is_missing(tmp_path: Path) -> None:
    packer = zlib.compressobj(wbits=31)
    packed = packer.compress((GOOD + b"\n") * 3) + packer.flush(zlib.Z_SYNC_FLUSH)
    assert seen(write(tmp_path, packed)) == [(1, None), (2, None), (3, None), (4, Fault.CUT_SHORT)]


def test_damaged_gzip_bytes_are_a_fault_not_a_crash(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(b"".join(b'{"a": %d}\n' % n for n in range(20_000))))
    packed[len(packed) // 2 : len(packed) // 2 + 50] = b"\xff" * 50
    assert seen(write(tmp_path, bytes(packed)))[-1][1] in (Fault.DAMAGED, Fault.CUT_SHORT)


def test_a_log_is_a_file_a_folder_or_a_glob(tmp_path: Path) -> None:
    for name in ("b/2.jsonl", "a/1.jsonl", "a/.hidden", ".git/x"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write(tmp_path, GOOD, name)
    assert [file.name for file in reading.discover(str(tmp_path))] == ["a/1.jsonl", "b/2.jsonl"]
    assert [file.name for file in reading.discover(f"{tmp_path}/*/2*.jsonl")] == ["b/2.jsonl"]
    assert [file.name for file in reading.discover(str(tmp_path / "a/1.jsonl"))] == ["1.jsonl"]


def test_a_log_on_another_file_system_is_read_through_fsspec() -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe_file("/reading-test/1.jsonl.gz", gzip.compress(GOOD + b"\n"))
    (file,) = reading.discover("memory://reading-test")
    assert [line.data for line in reading.lines(file.blocks())] == [GOOD]
    memory.rm("/reading-test", recursive=True)


def test_a_log_that_is_not_there_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"nothing\.jsonl"):
        reading.discover(str(tmp_path / "nothing.jsonl"))


def test_blocks_may_split_lines_anywhere() -> None:
    data = b'{"a": 1}\n\n{"b": 2}\n{"c'
    for size in range(1, len(data) + 1):
        blocks = (
            iter(io.BytesIO(data).read1, b"")
            if size > len(data)
            else [data[i : i + size] for i in range(0, len(data), size)]
        )
        found = [(line.number, line.data, line.is_open) for line in reading.lines(iter(blocks))]
        assert found == [(1, b'{"a": 1}', False), (3, b'{"b": 2}', False), (4, b'{"c', True)]
