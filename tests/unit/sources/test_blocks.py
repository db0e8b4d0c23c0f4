"""Blocks say of each line what reading line by line says, wherever the content is cut."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from warmup_tasks.sources import blocks, reading
from warmup_tasks.sources.faults import Fault

PIECES = st.sampled_from([b"\n", b"\r\n", b"{}", b'{"a":1}', b"[1]", b" ", b"\0", b"\xff", b"\xef\xbb\xbf", b"x" * 9])
CONTENT = st.lists(PIECES | st.binary(max_size=6), max_size=12).map(b"".join)
LIMIT = 20


def cut(data: bytes, size: int, is_damaged: bool) -> "reading.Iterator[bytes]":
    yield from (data[at : at + size] for at in range(0, len(data), size))
    if is_damaged:
        raise reading.DamagedFileError(Fault.CUT_SHORT)


@settings(max_examples=400, deadline=None)
@example(b"{}" + b"x" * 20 + b"\xef\xbb\xbf", 3, 1, False)
@given(CONTENT, st.integers(3, 40), st.integers(1, 60), st.booleans())
def test_blocks_and_lines_say_the_same(data: bytes, size: int, block_bytes: int, is_damaged: bool) -> None:
    raws = list(reading.json_records(reading.lines(cut(data, size, is_damaged), LIMIT)))
    parsed = [
        blocks.parse(block, LIMIT)
        for block in blocks.line_blocks(cut(data, size, is_damaged), LIMIT, block_bytes=block_bytes)
    ]
    records = [r for p in parsed for r in zip(p.numbers, p.lines, p.records, strict=True)]
    assert records == [(raw.line.number, raw.line.data, raw.value) for raw in raws if raw.line.fault is None]
    faults = [(f.number, f.fault, f.detail, f.size_bytes, f.digest()) for p in parsed for f in p.faults]
    expected = [raw.line for raw in raws if raw.line.fault is not None]
    assert faults == [(f.number, f.fault, f.detail, f.size_bytes, f.digest()) for f in expected]


@settings(max_examples=200, deadline=None)
@given(CONTENT, st.integers(1, 60))
def test_reading_goes_on_where_any_block_ended(data: bytes, block_bytes: int) -> None:
    whole = list(blocks.line_blocks(iter([data]), LIMIT, block_bytes=block_bytes))
    for block in whole:
        rest = blocks.line_blocks(
            iter([data[block.offset :]]), LIMIT, first_line=block.first_line, offset=block.offset, block_bytes=10**6
        )
        seen = [p for b in rest for p in zip(*blocks.parse(b, LIMIT)[:2], strict=True)]
        later = [p for b in whole if b.offset >= block.offset for p in zip(*blocks.parse(b, LIMIT)[:2], strict=True)]
        assert seen == later


@pytest.mark.parametrize("start", [0, 1, 8, 9, 300_000])
def test_content_can_begin_anywhere_compressed_or_not(tmp_path: "reading.Any", start: int) -> None:
    import gzip

    data = b'{"a": 1}\n' * 50_000
    for name, packed in (("plain", data), ("gzip", gzip.compress(data))):
        (tmp_path / name).write_bytes(packed)
        (file,) = reading.discover(str(tmp_path / name))
        assert b"".join(file.blocks(start=start)) == data[start:]
