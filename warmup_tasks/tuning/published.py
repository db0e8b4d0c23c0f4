"""Tuned values in the lake: how a night leaves them, and how a later run picks them up.

The data set is ``tuning/<class>.<as_of>``, a partition for each class and night, so that listing them tells which is
the newest before a moment: a backfill does not see later nights, leaves theirs in force, and a night that is run again
does not see its own values. Defaults come first, then tuned values, then what an operator sets.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import orjson
import pyarrow as pa

from warmup_tasks.errors import ConfigurationError
from warmup_tasks.lake.store import Lake
from warmup_tasks.parameters import GoldenParameters, load_parameters
from warmup_tasks.runs import Origins
from warmup_tasks.tuning.sensitivity import Sensitivity
from warmup_tasks.tuning.traffic import partition_name

logger = logging.getLogger(__name__)

DATASET = "tuning"

PARAMETERS = pa.schema(
    [
        ("name", pa.string()),
        ("value", pa.string()),  # JSON
        ("default", pa.string()),  # JSON
        ("is_tuned", pa.bool_()),  # false: held at the value of the night before, or at the default
        ("total_effect", pa.float64()),  # share of the objective's variance; null where not tuned
    ]
)
"""One row a parameter. Grain: name."""


@dataclass(frozen=True, slots=True)
class TunedValues:
    """What a night published for one traffic class.

    Attributes:
        ref: of the partition.
        as_of: of the night.
        model: of the class.
        values: parameter → value, all that differ from the default or were tuned.
        suits_plan: whether a nightly plan with them was at least as good as with the defaults; else they are for
            passive triggers alone.
        requests: of the class in that night's window.
        tuned_at: parameter → ISO time of the night that tuned it last.
    """

    ref: str
    as_of: datetime
    model: str
    values: dict[str, Any]
    suits_plan: bool
    requests: int
    tuned_at: dict[str, str]


def publish(
    lake: Lake,
    traffic_class: str,
    as_of: datetime,
    values: Mapping[str, Any],
    found: Sensitivity,
    meta: Mapping[str, Any],
) -> str:
    """Publish a night's values, and return the reference; what they rest on stands in the night's account."""
    defaults = GoldenParameters().model_dump(mode="json")
    parameters = [
        {
            "name": name,
            "value": _json(values.get(name, default)),
            "default": _json(default),
            "is_tuned": name in found.effects,
            "total_effect": found.effects.get(name),
        }
        for name, default in defaults.items()
    ]
    table = pa.Table.from_pylist(parameters, schema=PARAMETERS)
    facts = {**meta, "as_of": as_of.isoformat(), "values": dict(values)}
    return lake.publish(DATASET, f"{traffic_class}.{_stamp(as_of)}", {"parameters": table}, facts)


def tuned_values(lake: Lake, model: str, adapter: str | None, request_type: str, as_of: datetime) -> TunedValues | None:
    """Return the newest values that a night before ``as_of`` published for a traffic class; None: there are none."""
    newest = _newest(lake, as_of).get(partition_name(model, adapter, request_type))
    return None if newest is None else _read(lake, newest)


def effective_parameters(
    lake: Lake,
    as_of: datetime,
    explicit: Mapping[str, Any] | None = None,
    *,
    models: Sequence[str] = (),
    for_plan: bool = True,
) -> tuple[GoldenParameters, Origins]:
    """Return the parameters of a run, and where each comes from.

    Defaults, then the tuned values of the class with most requests, then what the operator set. Tuned values that the
    fields no longer take are left out, with a warning: tuning never fails a run.

    Args:
        lake: holds earlier nights.
        as_of: of the run.
        explicit: parameter → value, only those that an operator really set.
        models: of these models only; empty: any.
        for_plan: only values that suit a nightly plan; False: those of passive triggers too.

    Raises:
        ConfigurationError: a value that the operator set is refused; the message names the field.
    """
    explicit = dict(explicit or {})
    own = load_parameters(explicit)
    known = [_read(lake, partition) for partition in _newest(lake, as_of).values()]
    usable = [one for one in known if (not models or one.model in models) and (one.suits_plan or not for_plan)]
    chosen = max(usable, key=lambda one: (one.requests, one.ref), default=None)
    if chosen is None:
        return own, Origins(set_by_operator=tuple(explicit))
    try:
        parameters = load_parameters({**chosen.values, **explicit})
    except ConfigurationError as error:
        logger.warning("the tuned values of %s are left out: %s", chosen.ref, error)
        return own, Origins(set_by_operator=tuple(explicit))
    defaults = GoldenParameters().model_dump(mode="json")
    tuned = {
        name: datetime.fromisoformat(chosen.tuned_at[name]) if name in chosen.tuned_at else chosen.as_of
        for name, value in chosen.values.items()
        if name not in explicit and (name in chosen.tuned_at or value != defaults[name])
    }
    return parameters, Origins(tuning_ref=chosen.ref, tuned=tuned, set_by_operator=tuple(explicit))


def _newest(lake: Lake, as_of: datetime) -> dict[str, str]:
    """Return class → its newest partition of a night before ``as_of``."""
    found: dict[str, str] = {}
    for partition in sorted(lake.partitions(DATASET)):
        traffic_class, _, night = partition.rpartition(".")
        if night < _stamp(as_of):
            found[traffic_class] = partition
    return found


def _read(lake: Lake, partition: str) -> TunedValues:
    ref = lake.latest(DATASET, partition) or f"{DATASET}/{partition}"
    meta = lake.meta(ref)
    night = datetime.fromisoformat(meta["as_of"])
    facts = {name: meta[name] for name in ("model", "values", "suits_plan", "requests", "tuned_at")}
    return TunedValues(ref=ref, as_of=night, **facts)


def _stamp(as_of: datetime) -> str:
    return f"{as_of.astimezone(UTC):%Y%m%dT%H%M%SZ}"


def _json(value: Any) -> str:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()
