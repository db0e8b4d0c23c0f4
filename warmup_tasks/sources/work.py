"""Reading by several processes: blocks of lines go out, staged files and tallies come back.

Each process is a plain child with a pipe, so that extraction runs inside any task runner, thread or notebook. One that
does not start, or dies, ends the extraction; nothing was published by then.
"""

import contextlib
import gc
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Self

import warmup_tasks
from warmup_tasks.errors import RetryLaterError
from warmup_tasks.sources import blocks, tabling
from warmup_tasks.sources.base import Batch, Source
from warmup_tasks.sources.blocks import LineBlock
from warmup_tasks.sources.reading import MAX_LINE_BYTES, Line, Raw
from warmup_tasks.sources.staging import Staged, Staging
from warmup_tasks.sources.tabling import Tabling

RECORDS_AT_ONCE = 2_000
BYTES_AT_ONCE = 2**22
_END_DEADLINE_S = 10.0
_KEEP_MEMORY = {
    "MALLOC_TRIM_THRESHOLD_": f"{2**30}",
    "MALLOC_MMAP_THRESHOLD_": f"{2**30}",
    "MALLOC_TOP_PAD_": f"{2**24}",
}
"""Memory that one batch gave back serves the next one; a tenth of the time went into asking the system for it."""


class Task(NamedTuple):
    """A block to read."""

    file: str
    source: Source
    block: LineBlock


@dataclass(frozen=True)
class Job:
    """What every process of an extraction knows.

    Attributes:
        folder: where it stages.
        tabling: how requests become rows.
        max_line_bytes: longer lines are quarantined.
    """

    folder: Path
    tabling: Tabling = field(default_factory=Tabling)
    max_line_bytes: int = MAX_LINE_BYTES


class Reader:
    """Reads blocks and records into a staging of its own."""

    def __init__(self, job: Job, number: int = 0) -> None:
        self._job = job
        self._staging = Staging(job.folder, number)

    def read_block(self, task: Task) -> None:
        """Read the lines of a block, one record each."""
        parsed = blocks.parse(task.block, self._job.max_line_bytes)
        self._stage(task.source, task.file, parsed, is_open=task.block.is_open)

    def read_records(self, source: Source, file: str, raws: Iterable[Raw]) -> None:
        """Read records that do not stand by themselves on a line each."""
        for some in _in_batches(raws):
            self._stage(source, file, some, is_open=False)

    def add_faults(self, file: str, lines: Iterable[Line]) -> None:
        """Quarantine lines that nothing can read."""
        for line in lines:
            self._stage(None, file, blocks.Parsed([], [], [], [line]), is_open=False)

    def finish(self) -> Staged:
        """Return what was staged."""
        return self._staging.finish()

    def _stage(self, source: Source | None, file: str, parsed: blocks.Parsed, *, is_open: bool) -> None:
        tally = self._staging.tally(file, is_open)
        batch = Batch(parsed.records)
        if source is not None:
            source.read_batch(batch)
        requests = self._job.tabling.requests(batch, parsed.numbers, source.name if source else "", file, tally)
        refused = tabling.refused(batch, lambda place: _line(parsed, place))
        self._staging.add(
            requests,
            tabling.feedback(batch, parsed.numbers, file, tally),
            tabling.quarantine([*parsed.faults, *refused], file, tally),
        )
        tally.not_requests.update(batch.not_requests.values())


class Pool:
    """The processes of one extraction; leaving it ends them."""

    def __init__(self, job: Job, processes: int) -> None:
        self._job, self._count = job, processes
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        roots = [str(Path(warmup_tasks.__file__).resolve().parent.parent), *sys.path]
        environment = {**os.environ, **_KEEP_MEMORY, "PYTHONPATH": os.pathsep.join(filter(None, roots))}
        for number in range(self._count):
            process = subprocess.Popen(
                [sys.executable, "-c", f"from {__name__} import main; main()"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment,
            )
            self._processes.append(process)
            _send(process, (self._job, number + 1))
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
            for pipe in (process.stdin, process.stdout):
                with contextlib.suppress(OSError):
                    if pipe is not None:
                        pipe.close()
            process.wait(_END_DEADLINE_S)

    def read(self, tasks: Iterator[Task]) -> Staged:
        """Read all tasks and return what was staged.

        Raises:
            RetryLaterError: a process died, mostly for want of memory.
        """
        staged, errors, lock = Staged(), list[BaseException](), threading.Lock()

        def feed(process: subprocess.Popen[bytes]) -> None:
            try:
                for task in _one_by_one(tasks, lock, errors):
                    _send(process, task)
                _send(process, None)
                found = _received(process)
                with lock:
                    staged.add(found)
            except BaseException as error:  # noqa: BLE001 - it is raised again where the tasks came from
                errors.append(error)

        threads = [threading.Thread(target=feed, args=(process,), daemon=True) for process in self._processes]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        return staged


def _one_by_one(tasks: Iterator[Task], lock: threading.Lock, errors: list[BaseException]) -> Iterator[Task]:
    while not errors:
        with lock:
            task = next(tasks, None)
        if task is None:
            return
        yield task


def _send(process: subprocess.Popen[bytes], message: Any) -> None:
    try:
        pickle.dump(message, _pipe(process.stdin), protocol=pickle.HIGHEST_PROTOCOL)
        _pipe(process.stdin).flush()
    except BrokenPipeError:
        raise _died(process) from None


def _received(process: subprocess.Popen[bytes]) -> Staged:
    try:
        found: Staged | str = pickle.load(_pipe(process.stdout))  # noqa: S301 - from our own child
    except (EOFError, pickle.UnpicklingError):
        raise _died(process) from None
    if isinstance(found, str):
        raise RuntimeError(f"a reading process failed: {found}")
    return found


def _pipe(pipe: Any) -> BinaryIO:
    return pipe  # type: ignore[no-any-return]


def _died(process: subprocess.Popen[bytes]) -> RetryLaterError:
    status = process.wait(_END_DEADLINE_S)
    return RetryLaterError(f"log: a reading process ended with status {status}, perhaps for want of memory; try again")


def _line(parsed: blocks.Parsed, place: int) -> Line:
    data = parsed.lines[place]
    return Line(parsed.numbers[place], data, len(data))


def _in_batches(raws: Iterable[Raw]) -> Iterator[blocks.Parsed]:
    held, held_bytes = blocks.Parsed([], [], [], []), 0
    for raw in raws:
        if raw.line.fault is not None:
            held.faults.append(raw.line)
        else:
            held.records.append(raw.value)
            held.numbers.append(raw.line.number)
            held.lines.append(raw.line.data)
        held_bytes += raw.line.size_bytes
        if len(held.records) + len(held.faults) >= RECORDS_AT_ONCE or held_bytes >= BYTES_AT_ONCE:
            yield held
            held, held_bytes = blocks.Parsed([], [], [], []), 0
    yield held


def _serve(source: BinaryIO, sink: BinaryIO) -> None:
    """Read tasks until the parent ends them, and answer with what was staged, or with where it failed."""
    try:
        job, number = pickle.load(source)  # noqa: S301 - from our own parent
        reader = Reader(job, number)
        while (task := pickle.load(source)) is not None:  # noqa: S301
            reader.read_block(task)
        answer: Staged | str = reader.finish()
    except Exception as error:  # noqa: BLE001 - what it was may hold prompts; where it was does not
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        place = f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}" if trace is not None else "?"
        answer = f"{type(error).__name__} at {place}"
    pickle.dump(answer, sink, protocol=pickle.HIGHEST_PROTOCOL)
    sink.flush()


def main() -> None:
    """Be a reading process; what anybody prints goes to the errors, not among the answers."""
    gc.freeze()
    gc.disable()  # records are trees: they go when their batch goes
    with os.fdopen(os.dup(sys.stdout.fileno()), "wb") as answers:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        _serve(sys.stdin.buffer, answers)
