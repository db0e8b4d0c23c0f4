"""Equal rows of one trace are so many requests, while the same row of a second copy of the trace is the same request.

Traces without request ids get theirs here: a digest of the row, and the row's number among its equals.
"""

import hashlib
from collections import Counter
from datetime import datetime


class RowIds:
    """Ids of one file's rows. Equal rows have equal times, so only those of the newest time are remembered."""

    def __init__(self) -> None:
        self._time: datetime | str | float | None = None
        self._seen: Counter[bytes] = Counter()

    def of(self, row: bytes, time: datetime | str | float | None) -> str:
        """Return the id of the next row: equal for equal rows of two files, different for two rows of one file."""
        if time != self._time:
            self._time = time
            self._seen.clear()
        sha256 = hashlib.sha256(row.strip()).digest()
        self._seen[sha256] += 1
        number = self._seen[sha256]
        return f"sha256-{sha256.hex()[:32]}" + (f"-{number}" if number > 1 else "")
