"""Times of many records at once, by the rules of ``fields.parse_time``: what is not a time by itself stays null.

Arrays in, arrays out; which values a column takes, and why one is refused, is told elsewhere.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from warmup_tasks.lake.schemas import TIMESTAMP
from warmup_tasks.sources import fields

_ZONED, _LOCAL = pa.timestamp("us", tz="UTC"), pa.timestamp("us")


def of_texts(texts: pa.Array) -> pa.Array | None:
    """Return ISO 8601 texts as times, None where one is in another form or they differ in having a zone."""
    for kind in (_ZONED, _LOCAL):
        try:
            return texts.cast(kind).cast(TIMESTAMP)
        except pa.ArrowInvalid:
            continue
    return None


def microseconds_of(numbers: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Return numbers, whole ones or not, as microseconds since 1970, each in its unit; 0 for none."""
    microseconds = np.zeros(len(numbers), dtype=np.int64)
    below: float = 0
    for bound, per_s in fields.UNITS_PER_S:
        is_unit = (numbers > below if below == 0 else numbers >= below) & (numbers < bound)
        part, below = numbers[is_unit], bound
        if numbers.dtype == np.int64:
            microseconds[is_unit] = part * (10**6 // per_s) if per_s <= 10**6 else part // (per_s // 10**6)
        else:
            microseconds[is_unit] = np.rint(part * (10**6 / per_s)).astype(np.int64)
    return microseconds


def in_range(times: pa.Array) -> pa.Array:
    """Return times with null for each that may not be."""
    first, last = pa.scalar(fields.EARLIEST, TIMESTAMP), pa.scalar(fields.LATEST, TIMESTAMP)
    ends = pc.min_max(times)
    if ends["min"].is_valid and ends["min"].as_py() >= fields.EARLIEST and ends["max"].as_py() < fields.LATEST:
        return times
    is_one = pc.and_(pc.greater_equal(times, first), pc.less(times, last))
    return pc.if_else(is_one, times, pa.scalar(None, TIMESTAMP))


def of_numbers(values: Sequence[float]) -> pa.Array | None:
    """Return numbers of one type as times, None where one has too many digits."""
    try:
        numbers = np.array(values, dtype=np.int64 if isinstance(values[0], int) else np.float64)
    except OverflowError:
        return None
    return pa.array(microseconds_of(numbers)).cast(TIMESTAMP)
