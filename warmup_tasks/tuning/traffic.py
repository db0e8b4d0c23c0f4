"""Traffic classes (spec 0: model × adapter × request type) and the stretches of their logs that serve for trials."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime

import numpy as np
import pyarrow as pa

from warmup_tasks.errors import ConfigurationError
from warmup_tasks.identity import digest
from warmup_tasks.lake.store import Lake
from warmup_tasks.replay.accesses import Accesses, Floats
from warmup_tasks.replay.logs import read_accesses
from warmup_tasks.resources import sql

NameOf = Callable[[str | None, str | None], tuple[str, str | None] | None]
"""Logged model and adapter → those that serve it, under their own names; None: nobody does."""

BASE = "base"
"""Stands for "no adapter" in a class's name."""

_NAMES = pa.schema([("model", pa.string()), ("adapter", pa.string()), ("request_type", pa.string())])


@dataclass(frozen=True, slots=True)
class TrafficClass:
    """Requests that are tuned together, under the names that serve them.

    Attributes:
        model: its served name.
        adapter: likewise; None: the base model.
        request_type: chat, completion, unknown.
        requests: how many there are in the window.
        logged: (model, adapter) under which the log has them.
    """

    model: str
    adapter: str | None
    request_type: str
    requests: int
    logged: tuple[tuple[str | None, str | None], ...]

    @property
    def name(self) -> str:
        """The name of its partition in the lake: ``<model>.<adapter or base>.<request type>``."""
        return partition_name(self.model, self.adapter, self.request_type)


def partition_name(model: str, adapter: str | None, request_type: str) -> str:
    """Return a class's partition; names that a file system may not hold are spelt with a digest."""
    return ".".join(_safe(part) for part in (model, adapter or BASE, request_type))


def _safe(text: str) -> str:
    plain = re.sub(r"[^A-Za-z0-9_+-]", "-", text)
    return plain if plain == text and text[:1].isalnum() else f"x{plain}-{digest(text)[:8]}"


def traffic_classes(lake: Lake, name_of: NameOf, since: datetime, until: datetime) -> list[TrafficClass]:
    """Return the classes that are served, the most asked for first.

    Args:
        lake: holds ``requests/<day>``.
        name_of: gives models and adapters their names.
        since: UTC.
        until: UTC.
    """
    refs = _requests(lake)
    if not refs:
        return []
    counted = lake.query(sql("tuning/traffic_classes"), {"requests": refs}, {"since": since, "until": until})
    found: dict[tuple[str, str | None, str], TrafficClass] = {}
    for row in counted.to_pylist():
        served = name_of(row["model"], row["adapter"])
        if served is None:
            continue
        key = (*served, row["request_type"])
        known = found.get(key, TrafficClass(*key, 0, ()))
        logged = (*known.logged, (row["model"], row["adapter"]))
        found[key] = replace(known, requests=known.requests + row["requests"], logged=logged)
    return sorted(found.values(), key=lambda one: (-one.requests, one.name))


def class_accesses(
    lake: Lake, traffic: TrafficClass, since: datetime, until: datetime, block_tokens: int
) -> Accesses | None:
    """Return a class's requests as block accesses; None where the log holds neither prompts nor block hashes."""
    names = pa.Table.from_pylist(
        [
            {"model": model, "adapter": adapter, "request_type": traffic.request_type}
            for model, adapter in traffic.logged
        ],
        schema=_NAMES,
    )
    bounds = {"since": since, "until": until}
    rows = lake.query(sql("tuning/class_requests"), {"requests": _requests(lake), "names": names}, bounds)
    try:
        return read_accesses(lake, since=since, until=until, block_tokens=block_tokens, requests=rows).accesses
    except ConfigurationError:
        return None


def every_nth(accesses: Accesses, replicas: int) -> Accesses:
    """Return what one of several replicas sees when requests are dealt in turn."""
    if replicas <= 1:
        return accesses
    kept = np.arange(0, len(accesses), replicas)
    lengths = accesses.lengths()
    is_kept = np.zeros(len(accesses), np.bool_)
    is_kept[kept] = True
    return replace(
        accesses,
        ids=accesses.ids[np.repeat(is_kept, lengths)],
        offsets=np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths[kept])]),
        times_s=accesses.times_s[kept],
        prompt_tokens=accesses.prompt_tokens[kept],
    )


def busiest(
    times_s: Floats, since_s: float, until_s: float, length_s: float, most_requests: int
) -> tuple[float, float]:
    """Return the stretch of at most ``length_s`` within [since_s, until_s) that holds most requests.

    One with more than ``most_requests`` is cut to about so many.
    """
    length = min(length_s, until_s - since_s)
    inside: Floats = times_s[(times_s >= since_s) & (times_s < until_s)]
    starts = np.minimum(inside, until_s - length)
    if not len(starts):
        return since_s, since_s + length
    counts = np.searchsorted(inside, starts + length, side="left") - np.searchsorted(inside, starts, side="left")
    start, most = float(starts[int(counts.argmax())]), int(counts.max())
    return start, start + length * min(1.0, most_requests / max(1, most))


def _requests(lake: Lake) -> list[str]:
    return [f"requests/{day}:requests" for day in lake.partitions("requests")]
