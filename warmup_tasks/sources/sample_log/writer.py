"""Writes the demo log: one file a day, a second export that overlaps, feedback, and a few bad lines of each kind.

Same arguments, same bytes. The account of what was written is what an extraction must find.
"""

import gzip
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import groupby
from pathlib import Path
from random import Random

from warmup_tasks.errors import ConfigurationError
from warmup_tasks.items import Record
from warmup_tasks.sources.faults import Fault
from warmup_tasks.sources.sample_log import lines
from warmup_tasks.sources.sample_log.conversations import Asked, conversation
from warmup_tasks.sources.sample_log.tenants import MODEL, Tenant, make_tenants
from warmup_tasks.sources.sample_log.traffic import REGIONS, starts

DEFAULT_AS_OF = datetime(2026, 11, 27, 2, 0, tzinfo=UTC)
"""The time that the demo plans from; the log goes on for some hours, so that the plan can be scored."""

_AFTER = timedelta(hours=3)
_OVERLAP_ROWS = 25
_FEEDBACK_EVERY = 60
_HEALTH_EVERY = 100
_BAD_BEHIND = 20


class SampleLogSummary(Record):
    """What was written. ``requests`` counts each once; ``duplicates`` are the rows that the overlap repeats."""

    folder: str
    files: list[str]
    as_of: datetime
    model: str
    requests: int
    requests_after_as_of: int
    unique_prompts: int
    tenants: int
    feedback_rows: int
    duplicates: int
    not_a_request: int
    bad_rows_by_reason: dict[str, int]
    first_time: datetime
    last_time: datetime


def write_sample_log(
    folder: str | Path, *, seed: int = 7, days: int = 3, scale: float = 1.0, end: datetime = DEFAULT_AS_OF
) -> SampleLogSummary:
    """Write the demo log.

    Args:
        folder: created; files of the same names are replaced.
        seed: same seed, same bytes.
        days: history before ``end``.
        scale: traffic; 1.0 gives about 5,000 requests in three days.
        end: the time to plan from; the log goes on for three hours behind it.

    Raises:
        ConfigurationError: ``end`` has no time zone, or the arguments leave no request.
    """
    if end.tzinfo is None:
        raise ConfigurationError("end: give a time zone, such as +00:00")
    end = end.astimezone(UTC)
    random = Random(seed)
    tenants = make_tenants(random)
    begin, until = end - timedelta(days=days), end + _AFTER
    asked = sorted(_requests(random, tenants, begin, until, scale), key=lambda one: (one.moment, one.request_id))
    if not asked:
        raise ConfigurationError("scale: no request came of it; take more traffic or more days")
    writer = _Writer(Path(folder))
    _write_requests(writer, asked)
    feedback = [one for one in asked if one.answer and "messages" in one.body][::_FEEDBACK_EVERY]
    writer.write("feedback.jsonl", (lines.feedback_line(random, one) for one in feedback))
    return SampleLogSummary(
        folder=str(folder),
        files=sorted(writer.names),
        as_of=end,
        model=MODEL,
        requests=len(asked),
        requests_after_as_of=sum(one.moment >= end for one in asked),
        unique_prompts=len({repr(one.body) for one in asked}),
        tenants=len({one.tenant.name for one in asked}),
        feedback_rows=len(feedback),
        duplicates=writer.duplicates,
        not_a_request=writer.not_a_request,
        bad_rows_by_reason=dict(sorted(writer.bad.items())),
        first_time=asked[0].moment,
        last_time=asked[-1].moment,
    )


def _requests(random: Random, tenants: list[Tenant], begin: datetime, until: datetime, scale: float) -> Iterable[Asked]:
    for name, region in REGIONS.items():
        local = [tenant for tenant in tenants if tenant.region == name]
        weights = [tenant.weight for tenant in local]
        for moment in starts(random, region, begin, until, scale):
            (tenant,) = random.choices(local, weights)
            yield from (one for one in conversation(random, tenant, moment) if one.moment < until)


def _write_requests(writer: "_Writer", asked: list[Asked]) -> None:
    """Write the first day in the project's own format, the others as a gateway does, and one export that overlaps."""
    by_day = {day: list(group) for day, group in groupby(asked, key=lambda one: f"{one.moment:%Y-%m-%d}")}
    first, *later = by_day
    writer.write(f"replayable-{first}.jsonl.gz", map(lines.normalised_line, by_day[first]))
    for day in later:
        rows = list(_gateway_rows(by_day[day]))
        writer.not_a_request += len(rows) - len(by_day[day])
        if day == later[-1]:
            writer.write(f"gateway-{day}.jsonl", rows, tail=(Fault.TRUNCATED_LINE, rows[-1][:200]))
        else:
            bad = lines.bad_lines(by_day[day][0].moment) if day == later[0] else []
            writer.write(f"gateway-{day}.jsonl.gz", rows, bad=bad)
    if later:
        again = by_day[later[-1]][:_OVERLAP_ROWS]
        writer.duplicates += len(again)
        writer.write_cut_short(f"second-export-{later[-1]}.jsonl.gz", map(lines.gateway_line, again))


def _gateway_rows(asked: list[Asked]) -> Iterator[bytes]:
    for number, one in enumerate(asked, start=1):
        yield lines.gateway_line(one)
        if number % _HEALTH_EVERY == 0:
            yield lines.health_line(one.moment)


class _Writer:
    """Writes files of lines and keeps the account."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.names = folder, list[str]()
        self.duplicates = self.not_a_request = 0
        self.bad: Counter[str] = Counter()

    def write(
        self,
        name: str,
        rows: Iterable[bytes],
        *,
        bad: Sequence[tuple[Fault, bytes]] = (),
        tail: tuple[Fault, bytes] | None = None,
    ) -> None:
        """Write whole lines, the bad ones after the first few good ones, and at last a piece that lacks its end."""
        whole = list(rows)
        whole[_BAD_BEHIND:_BAD_BEHIND] = [line for _, line in bad]
        faults = [*bad, *([tail] if tail else [])]
        self.bad.update(str(fault) for fault, _ in faults)
        data = b"".join(line + b"\n" for line in whole) + (tail[1] if tail else b"")
        self._put(name, gzip.compress(data, mtime=0) if name.endswith(".gz") else data)

    def write_cut_short(self, name: str, rows: Iterable[bytes]) -> None:
        """Write a gzip file whose end is missing; every line of ``rows`` can still be read."""
        packer = zlib.compressobj(wbits=31)
        data = packer.compress(b"".join(line + b"\n" for line in rows)) + packer.flush(zlib.Z_SYNC_FLUSH)
        self.bad[str(Fault.CUT_SHORT)] += 1
        self._put(name, data)

    def _put(self, name: str, data: bytes) -> None:
        self.names.append(name)
        (self.folder / name).write_bytes(data)
