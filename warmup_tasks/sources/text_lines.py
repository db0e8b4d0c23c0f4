"""Lines of logs that are text and not JSON: each becomes a string, or keeps the fault that it is none.

What a line says is the business of the formats.
"""

from collections.abc import Iterator

from warmup_tasks.sources.faults import Fault
from warmup_tasks.sources.reading import Line


def texts(lines: Iterator[Line]) -> Iterator[tuple[Line, str]]:
    """Yield each line with its text, without line end; the text of a line with a fault is empty."""
    for line in lines:
        if line.fault is not None:
            yield line, ""
        elif b"\0" in line.data:
            yield line._replace(fault=Fault.NUL_BYTE), ""
        else:
            try:
                yield line, line.data.decode().rstrip("\r\n")
            except UnicodeDecodeError:
                yield line._replace(fault=Fault.NOT_UTF8), ""
