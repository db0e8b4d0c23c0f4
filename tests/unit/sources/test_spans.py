"""Lines read straight from their bytes give what their records give as objects: every row, digest, reason and count."""

import random
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import request_logs
from warmup_tasks.lake.schemas import QUARANTINE, REQUESTS
from warmup_tasks.sources import blocks, registry
from warmup_tasks.sources.base import BatchSource
from warmup_tasks.sources.line_index import LineIndex
from warmup_tasks.sources.reader import Job, Reader, Task
from warmup_tasks.sources.runs import ArrowRun
from warmup_tasks.sources.spans import SpanBatch

SCALARS = (
    "null", "true", "false", "0", "-0", "7", "-5", "1.0", "0.5", "-0.25", "1.50", "1e3", "1E-7", "0.00001", "1e400",
    "123456789012345", "1234567890123456", "9007199254740993", "18446744073709551615", "18446744073709551616",
    "0.1234567890123456789", "1795651200", "1795651200.0938841", "1795651200123", "1795651200123456789",
    '""', '"a"', '"req-1"', '"request"', '"feedback"', '"chat"', '"completion"', '"embedding"', '"x@y"', '"200"',
    '"success"', '"2026-11-26T02:00:00Z"', '"2026-11-26 02:00:00.123456"', '"2026-02-30T00:00:00Z"',
    '"1999-01-01T00:00:00Z"', '"\\u00e9\\/\\n\\u0000\\u001f\\b\\"\\\\"', '"\\ud83d\\ude00"', '"\\ud83d"', '"\\udc00x"',
    '"é漢😀\x7f"', '"/v1/health?x"', '"{}"', '"{\\"a\\": 1}"', "[]", "{}", "01", "1.", ".5", "+1", "tru", "'a'",
    '"\t"', "",
)  # fmt: skip
NAMES = (
    "record", "time", "request_id", "tenant", "model", "messages", "prompt", "token_ids", "tools",
    "template_args", "x_note", "request_type", "cache_salt", "block_hashes", "block_tokens", "input_tokens",
    "cached_tokens", "ttft_ms", "latency", "latency_ms", "status", "answer_text", "adapter", "is_truncated",
    "session_id", "timestamp", "input", "output", "role", "content", "request", "response", "body", "usage",
    "choices", "message", "prompt_tokens", "id", "created", "completion_tokens", "prompt_tokens_details",
    "endpoint", "error", "code", "metadata", "user", "base_model", "chat_template_kwargs", "request_body",
    "response_body", "é", "", "\\u0061",
)  # fmt: skip
BLANKS = st.sampled_from(["", "", "", "", " ", "\t \r"])
MESSAGE = '{"role":"user","content":"Where is \\u00e9 caf\\u00e9?"}'
USAGE = '{"prompt_tokens":3,"prompt_tokens_details":{"cached_tokens":2}}'
TOOL = '{"type":"function","function":{"name":"f","parameters":{"z":1,"a":[0.5,null,true,{"b":"","a":-3}]}}}'


SOUND: dict[str, list[tuple[str, str]]] = {
    "normalised": [
        ("record", '"request"'),
        ("time", '"2026-11-26T02:00:00.5+01:00"'),
        ("request_id", '"r1"'),
        ("tenant", '"blue"'),
        ("messages", f"[{MESSAGE}]"),
        ("tools", f"[{TOOL}]"),
        ("template_args", '{"thinking":false}'),
        ("input_tokens", "7"),
        ("ttft_ms", "12.25"),
        ("status", "200"),
        ("answer_text", '"So."'),
    ],
    "openai": [
        ("timestamp", "1795651200.25"),
        ("request_id", '"r1"'),
        ("tenant_id", '"blue"'),
        ("endpoint", '"/v1/chat/completions"'),
        ("request", f'{{"model":"demo","messages":[{MESSAGE}],"tools":[{TOOL}]}}'),
        ("response", f'{{"id":"c1","choices":[{{"message":{{"content":"So."}}}}],"usage":{USAGE}}}'),
        ("latency_s", "1.5"),
        ("status", "200"),
    ],
    "agent-text": [
        ("timestamp", "1795651200000000"),
        ("input", '"Where?"'),
        ("output", '"There."'),
        ("session_id", '"s1"'),
    ],
}


@st.composite
def values(draw: st.DrawFn, depth: int = 3) -> str:
    """JSON, or nearly."""
    kind = draw(st.integers(0, 5 if depth else 2))
    if kind <= 2:
        return draw(st.sampled_from(SCALARS))
    blank, inner = draw(BLANKS), draw(st.lists(values(depth - 1), max_size=3))
    if kind == 3:
        return f"[{blank}" + f"{blank},".join(inner) + "]"
    return "{" + ",".join(f'"{draw(st.sampled_from(NAMES))}"{blank}:{value}' for value in inner) + blank + "}"


@st.composite
def lines(draw: st.DrawFn, form: str) -> bytes:
    """A line of a log: sound, with a few fields that are not, or with a few bytes that are not."""
    fields = list(SOUND[form])
    for _ in range(draw(st.sampled_from([0, 0, 1, 1, 2, 4]))):
        what, place = draw(st.sampled_from(["put", "drop", "in"])), draw(st.integers(0, len(fields) - 1))
        if what == "drop" and len(fields) > 1:
            del fields[place]
        elif what == "put":
            fields.insert(place, (draw(st.sampled_from(NAMES)), draw(values())))
        else:
            fields[place] = (fields[place][0], draw(values()))
    blank = draw(BLANKS)
    line = (blank + "{" + ",".join(f'{blank}"{name}":{blank}{value}' for name, value in fields) + "}" + blank).encode()
    if draw(st.integers(0, 5)) == 0:
        at = draw(st.integers(0, len(line)))
        line = line[:at] + draw(st.binary(max_size=2)) + line[at + draw(st.integers(0, 2)) :]
    return line.replace(b"\n", b"")


@pytest.mark.parametrize("form", SOUND)
@settings(max_examples=100, deadline=None)
@given(st.data())
def test_bytes_give_what_objects_give(form: str, data: st.DataObject) -> None:
    log = data.draw(st.lists(lines(form), min_size=1, max_size=6))
    assert read(form, log, is_compiled=True) == read(form, log, is_compiled=False)


@pytest.mark.parametrize("form", SOUND)
def test_a_sound_log_has_no_odd_lines(form: str, tmp_path: Path) -> None:
    request_logs.write(tmp_path / "log", form, 200_000)
    content = (tmp_path / "log").read_bytes()
    log = content.splitlines()
    index = LineIndex()
    index.read(content, len(log))
    batch = SpanBatch(index)
    registry.named(form).read_batch(batch)
    odd = [place for place, is_odd in enumerate(batch.is_odd) if is_odd]
    assert odd == [place for place, line in enumerate(log) if line == b'{"broken": ']
    assert read(form, log, is_compiled=True) == read(form, log, is_compiled=False)


def test_a_line_is_taken_only_if_it_is_json() -> None:
    chance = random.Random(5)
    sound = b'{"a":[1,-2.5e+3,"x\\u00e9\\ud83d\\ude00\xc3\xa9\xe6\xbc\xa2",true,null,{}],"b":{"c":[]}}'
    log = []
    for _ in range(20_000):
        line = bytearray(sound)
        for _ in range(chance.randint(1, 3)):
            at = chance.randrange(len(line))
            line[at : at + chance.randint(0, 2)] = chance.choice(
                [
                    b"",
                    b"\\",
                    b'"',
                    b",",
                    b"}",
                    b"]",
                    b"0",
                    b"\xe6",
                    b"\xed\xa0\x80",
                    b"\xf4\x90",
                    b"\0",
                    b"e",
                    b".",
                    b"u",
                ]
            )
        log.append(bytes(line).replace(b"\n", b""))
    index = LineIndex()
    index.read(b"".join(line + b"\n" for line in log), len(log))
    taken = [line for line, root in zip(log, index.roots, strict=True) if root >= 0]
    assert all(isinstance(orjson.loads(line), dict) for line in taken)
    missed = [line for line, root in zip(log, index.roots, strict=True) if root < 0 and is_object(line)]
    assert len(taken) > 500
    assert all(b'\\"' in line or b"\\u" in line or b"\\\\" in line for line in missed), missed[:3]  # names with escapes


def is_object(line: bytes) -> bool:
    try:
        return isinstance(orjson.loads(line), dict)
    except orjson.JSONDecodeError:
        return False


def read(form: str, log: Sequence[bytes], *, is_compiled: bool) -> tuple[Any, ...]:
    """Read lines; return requests, feedback, quarantine and counts."""
    source = registry.named(form)
    assert isinstance(source, BatchSource)
    with tempfile.TemporaryDirectory() as folder:
        reader = Reader(Job(Path(folder), is_compiled=is_compiled))
        data = b"".join(line + b"\n" for line in log)
        reader.read_block(Task("a.jsonl", source, blocks.LineBlock(1, 0, data, len(log))))
        staged = reader.finish()
        requests = [run for runs in staged.requests.values() for run in runs]
        rows = [
            row
            for run in requests
            for number in range(len(run.starts) - 1)
            for row in ArrowRun(run, REQUESTS).part(number).to_pylist()
        ]
        feedback = [
            row for files in staged.feedback.values() for file in files for row in pq.read_table(file).to_pylist()
        ]
        faults = pa.concat_tables([QUARANTINE.empty_table(), *map(pq.read_table, staged.quarantine)]).to_pylist()
    by_line = [sorted(part, key=lambda row: row["source_line"]) for part in (rows, feedback, faults)]
    tallies = {part: tally for part, tally in staged.tallies.items() if tally.records}
    return (*map(repr, by_line), tallies)
