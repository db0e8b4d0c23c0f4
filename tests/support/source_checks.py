"""What every log format must do, as checks that take a source and a sample of its log.

``test_source_conformance.py`` runs them over each registered source; a new source gives its sample there. What the lake
makes of a log is checked on the real one; what needs many readings reads files without it.
"""

import random
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson

from warmup_tasks.items import PromptBody
from warmup_tasks.lake import Lake
from warmup_tasks.sources import ExtractionSummary, extract, reading, registry
from warmup_tasks.sources.base import Feedback, NotARequest, Request, Source
from warmup_tasks.sources.faults import BadRecordError
from warmup_tasks.sources.inspection import GENERAL_HINTS
from warmup_tasks.sources.options import ReadOptions

SECRET = "xylophone"
"""Stands in every prompt and answer of a sample, and may come out nowhere but in a request."""

OPTIONS = ReadOptions(epoch=datetime(2026, 11, 1, tzinfo=UTC))
ODD_VALUES: tuple[Any, ...] = (
    None, True, -1, 3.5, 2**64 - 1, 1e300, "", "x", [], {}, [[]], [{"a": []}], {"a": {"b": None}}, "{", "[1",
)  # fmt: skip


class LogSample(NamedTuple):
    """A small sound log.

    Attributes:
        units: one sound request each (one or several lines, without the last line end), to be read in any order.
        head: what stands before them in each file, with its line end.
        has_prompts: whether the requests hold prompts.
    """

    units: Sequence[bytes]
    head: bytes = b""
    has_prompts: bool = True

    def data(self, units: Sequence[bytes] | None = None) -> bytes:
        """Return the content of a file with these units, or with all."""
        return self.head + b"".join(unit + b"\n" for unit in (self.units if units is None else units))


Rows = list[dict[str, Any]]


def is_recognised(source: Source, sample: LogSample) -> None:
    """``auto`` finds the format, says why, and no other is as sure; names and hints are well formed."""
    with _files(sample.data()) as folder:
        seen = registry.look_at(reading.discover(folder)[0])
    own = source.recognise(seen)
    assert own.ground
    assert 0.3 <= own.score <= 1
    for other in registry.SOURCES:
        if other.name != source.name:
            assert other.recognise(seen).score < own.score, f"{other.name} takes this log for its own"
    assert source.name == source.name.lower().replace("_", "-")
    assert set(source.hints) <= {*GENERAL_HINTS, *Request.__dataclass_fields__}


def reads_every_request(source: Source, sample: LogSample) -> None:
    """Each unit is one usable request, whose prompt is whole, and reading again or a copy brings nothing new."""
    with _files(sample.data(), sample.data()) as folder:
        lake = Lake(f"{folder}-lake")
        first = _extract(lake, f"{folder}/0.log", source)
        assert (first.requests_usable, first.rows_quarantined, first.duplicates) == (len(sample.units), 0, 0)
        rows = _rows(lake)
        assert len({row["request_id"] for row in rows}) == len(sample.units)
        for row in rows:
            assert (row["source_format"], row["source_file"]) == (source.name, "0.log")
            assert (row["body_json"] is not None) == (row["prompt_sha256"] is not None) == sample.has_prompts
            if row["body_json"] is not None:
                PromptBody.model_validate_json(row["body_json"])
        assert _extract(lake, f"{folder}/0.log", source) == first
        copy = _extract(lake, f"{folder}/1.log", source)
        assert copy.duplicates == len(sample.units)
        assert _rows(lake) == rows


def does_not_mind_order(source: Source, sample: LogSample, seed: int) -> None:
    """Units in another order, and spread over files, are the same requests."""
    shuffled = list(sample.units)
    random.Random(seed).shuffle(shuffled)
    with _files(sample.data(), sample.data(shuffled), *(sample.data([unit]) for unit in shuffled)) as folder:
        one, other, *parts = [_requests(source, file) for file in reading.discover(folder)]
    assert one == other == dict(item for part in parts for item in part.items())


def survives_garbage(source: Source, sample: LogSample, garbage: Sequence[bytes]) -> None:
    """Lines of garbage among sound ones take none of them along."""
    lines = [
        part for pair in zip_longest(sample.units, garbage[: len(sample.units)]) for part in pair if part is not None
    ]
    with _files(sample.data(), sample.data(lines)) as folder:
        sound, mixed = [_requests(source, file) for file in reading.discover(folder)]
    assert sound.items() <= mixed.items()


def survives_truncation(source: Source, sample: LogSample, at: float) -> None:
    """A file that ends anywhere is read up to there; what is left never becomes another prompt."""
    data = sample.data()
    with _files(data, data[: int(len(data) * at)]) as folder:
        whole, cut = [_requests(source, file) for file in reading.discover(folder)]
    bodies = {request.prompt.body_json for request in whole.values()}
    assert {request.prompt.body_json for request in cut.values() if not request.is_truncated} <= {*bodies, None}


def tells_no_content(source: Source, sample: LogSample, seed: int) -> None:
    """Whatever stands in whatever field: a request, none, or a fault that holds nothing of the content."""
    chance = random.Random(seed)
    with _files(sample.data()) as folder:
        (file,) = reading.discover(f"{folder}/0.log")
        fresh = source.for_file(file, OPTIONS)
        values = [raw.value for raw in fresh.records(reading.lines(file.blocks()))]
    for value in values:
        odd = _with_odd_value(value, chance)
        try:
            mapped = fresh.read_record(odd)
        except BadRecordError as error:
            if SECRET in str(error):
                raise
            continue
        assert isinstance(mapped, Request | NotARequest | Feedback)
        assert SECRET not in repr(mapped)
    assert SECRET not in " ".join(fresh.notes())


def keeps_files_apart(source: Source, sample: LogSample) -> None:
    """Two files that are read at the same time do not disturb each other."""
    with _files(sample.data(), sample.data(sample.units[:1])) as folder:
        files = reading.discover(folder)
        readers = [source.for_file(file, OPTIONS) for file in files]
        streams = [reader.records(reading.lines(file.blocks())) for reader, file in zip(readers, files, strict=True)]
        counts = [0, 0]
        values: list[Any] = [None, None]
        while values != [_END, _END]:
            for place, stream in enumerate(streams):
                values[place] = next(stream, _END)
                if values[place] is not _END and isinstance(readers[place].read_record(values[place].value), Request):
                    counts[place] += 1
        assert counts == [len(sample.units), 1]


_END = object()


def _extract(lake: Lake, log: str, source: Source) -> ExtractionSummary:
    summary = extract(lake, log, source.name, options=OPTIONS).held()
    parts = (summary.requests_usable, summary.feedback_rows, summary.rows_quarantined, summary.duplicates)
    assert summary.requests_read == sum(parts) + summary.not_a_request
    assert SECRET not in summary.model_dump_json()
    for partition in lake.partitions("quarantine"):
        assert SECRET not in str(lake.read(f"quarantine/{partition}", "quarantine").to_pylist())
    return summary


def _rows(lake: Lake) -> Rows:
    return [row for day in lake.partitions("requests") for row in lake.read(f"requests/{day}", "requests").to_pylist()]


def _requests(source: Source, file: reading.LogFile) -> dict[str, Request]:
    """Return the requests of one file by their ids; faults must name what they are."""
    fresh, found = source.for_file(file, OPTIONS), {}
    for raw in fresh.records(reading.lines(file.blocks())):
        if raw.line.fault is not None:
            continue
        try:
            mapped = fresh.read_record(raw.value)
        except BadRecordError as error:
            if SECRET in str(error):
                raise
            continue
        if isinstance(mapped, Request):
            if isinstance(mapped.block_hashes, np.ndarray):
                mapped.block_hashes = mapped.block_hashes.tolist()
            found[mapped.identity()] = mapped
    return found


def _with_odd_value(value: Any, chance: random.Random) -> Any:
    """Return a copy with one value somewhere in it replaced."""
    value = orjson.loads(orjson.dumps(value))
    place: Any = value
    while isinstance(place, dict | list) and place:
        key = chance.choice(list(place) if isinstance(place, dict) else range(len(place)))
        if not isinstance(place[key], dict | list) or not place[key] or chance.random() < 0.3:
            place[key] = chance.choice(ODD_VALUES)
            return value
        place = place[key]
    return value


@contextmanager
def _files(*contents: bytes) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "log"
        folder.mkdir()
        for number, content in enumerate(contents):
            (folder / f"{number}.log").write_bytes(content)
        yield str(folder)
