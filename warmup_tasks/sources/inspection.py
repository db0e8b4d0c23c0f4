"""What a log holds and lacks: formats with grounds, counts, the first problems, and what to change at its source.

A log is read as extraction reads it, into a lake that is thrown away. How it looks is the business of ``reporting``.
"""

import tempfile
from collections.abc import Mapping
from pathlib import Path

from warmup_tasks.items import Record
from warmup_tasks.lake import Lake
from warmup_tasks.resources import sql
from warmup_tasks.sources import registry
from warmup_tasks.sources.account import ExtractionSummary
from warmup_tasks.sources.base import DEFAULT_MODEL
from warmup_tasks.sources.extract import extract
from warmup_tasks.sources.log_reading import Progress
from warmup_tasks.sources.options import ReadOptions

PROBLEMS_PER_REASON = 3
LEAST_SHARE = 0.05
"""A field that fewer requests lack than this is not worth a change at the source."""

GENERAL_HINTS: Mapping[str, str] = {
    "prompt": "log the request body",
    "whole_prompt": "the log cuts prompts, which are never warmed then: raise or drop the limit",
    "tenant": "log who asks (tenant, team or user): until then all requests count as nobody's",
    "model": "log the request's model; until then name one with --set default_model=…",
    "cached_tokens": "log the response's usage, and start the engine with --enable-prompt-tokens-details",
    "answer_text": "log the response body: default answers and frequent questions are learned from it",
    "status": "log the HTTP status: until then failed requests count as good ones",
    "ttft_ms": "log the time to the first token: until then gains are measured on the engine alone",
    "input_tokens": "log the response's usage",
}
"""What to change where a log is written, for each field that it can lack, the worst first."""


class Problem(Record):
    """One quarantined record; never its content."""

    file: str
    line: int
    reason: str
    detail: str


class Advice(Record):
    """What ``missing`` of ``requests`` requests lack, and what to change at the source to get it."""

    format: str
    field: str
    missing: int
    requests: int
    hint: str


class Inspection(Record):
    """What :func:`inspect` found: no prompts, no salts."""

    account: ExtractionSummary
    problems: list[Problem]
    advice: list[Advice]


def inspect(
    log: str,
    log_format: str = registry.AUTO,
    *,
    options: ReadOptions | None = None,
    progress: Progress | None = None,
) -> Inspection:
    """Read a log and say what it holds and lacks; nothing is kept.

    Args:
        log: a file, a folder or a glob, as for ``extract``.
        log_format: a name from ``registry.formats()``.
        options: what the log does not say itself.
        progress: called with bytes read and bytes in all.

    Raises:
        ConfigurationError: nothing to read, an unknown format name, or no file in a known format.
    """
    with tempfile.TemporaryDirectory(prefix="warmup-inspect-") as folder:
        lake = Lake(str(Path(folder) / "lake"))
        account = extract(lake, log, log_format, options=options or ReadOptions(), progress=progress)
        return Inspection(account=account, problems=_problems(lake), advice=_advice(lake))


def _problems(lake: Lake) -> list[Problem]:
    refs = [f"quarantine/{partition}:quarantine" for partition in lake.partitions("quarantine")]
    if not refs:
        return []
    found = lake.query(sql("sources/first_problems"), {"quarantine": refs}, {"per_reason": PROBLEMS_PER_REASON})
    return [
        Problem(file=row["source_file"], line=row["source_line"], reason=row["reason"], detail=row["detail"] or "")
        for row in found.to_pylist()
    ]


def _advice(lake: Lake) -> list[Advice]:
    refs = [f"requests/{day}:requests" for day in lake.partitions("requests")]
    if not refs:
        return []
    sources = {source.name: source for source in registry.SOURCES}
    order = list(GENERAL_HINTS)
    found = lake.query(sql("sources/missing_fields"), {"requests": refs}, {"default_model": DEFAULT_MODEL}).to_pylist()
    advice = []
    for row in found:
        source = sources[row["source_format"]]
        hint = source.hints.get(row["field"], "" if source.is_published_trace else GENERAL_HINTS[row["field"]])
        if hint and row["missing"] and row["missing"] >= LEAST_SHARE * row["requests"]:
            numbers = {name: row[name] for name in ("field", "missing", "requests")}
            advice.append(Advice(format=source.name, hint=hint, **numbers))
    return sorted(advice, key=lambda part: (part.format, order.index(part.field)))
