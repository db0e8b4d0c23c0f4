"""Reading by several workers: blocks of lines go out, staged files and tallies come back.

Where compiled loops read columns, they leave Python's lock, and workers are threads. Where Python maps records, workers
are processes: plain children with a pipe, so that extraction runs inside any task runner, thread or notebook. One that
does not start, or dies, ends the extraction; nothing was published by then.
"""

import contextlib
import gc
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import warmup_tasks
from warmup_tasks.errors import RetryLaterError
from warmup_tasks.sources.reader import Job, Reader, Task
from warmup_tasks.sources.staging import Staged

_END_DEADLINE_S = 10.0
_KEEP_MEMORY = {
    "MALLOC_TRIM_THRESHOLD_": f"{2**30}",
    "MALLOC_MMAP_THRESHOLD_": f"{2**30}",
    "MALLOC_TOP_PAD_": f"{2**24}",
}
"""Memory that one batch gave back serves the next one; a tenth of the time went into asking the system for it."""


class Pool:
    """The workers of one reading; leaving it ends them."""

    def __init__(self, job: Job, numbers: Sequence[int]) -> None:
        """Take what every worker knows, and the number of each, by which it is told from others."""
        self._job, self._numbers = job, numbers
        self._workers: list[_Child | _Thread] = []

    def __enter__(self) -> Self:
        for number in self._numbers:
            self._workers.append(_Thread() if self._job.is_compiled else _Child())
            self._workers[-1].begin(self._job, number)
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.end()

    def read(self, tasks: Iterator[Task]) -> Staged:
        """Read all tasks and return what was staged; ``tasks`` is asked from other threads, one at a time.

        Raises:
            RetryLaterError: a process died, mostly for want of memory.
        """
        staged, errors, lock = Staged(), list[BaseException](), threading.Lock()

        def feed(worker: _Child | _Thread) -> None:
            try:
                for task in _one_by_one(tasks, lock, errors):
                    worker.send(task)
                worker.send(None)
                found = worker.receive()
                with lock:
                    staged.add(found)
            except BaseException as error:  # noqa: BLE001 - it is raised again where the tasks came from
                errors.append(error)

        threads = [threading.Thread(target=feed, args=(worker,), daemon=True) for worker in self._workers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        return staged


class _Thread:
    """A reader in this process; whatever thread hands it tasks reads them."""

    def begin(self, job: Job, number: int) -> None:
        """Begin a staging."""
        self._reader = Reader(job, number)

    def send(self, task: Task | None) -> None:
        """Read a task; None is the end. What an error says may hold prompts, where it was does not."""
        try:
            if task is not None:
                self._reader.read_block(task)
        except Exception as error:  # noqa: BLE001 - it is told by its place
            raise RuntimeError(f"reading failed: {type(error).__name__} at {_place(error.__traceback__)}") from None

    def receive(self) -> Staged:
        """Return what was staged."""
        return self._reader.finish()

    def end(self) -> None:
        """There is nothing to end."""


class _Child:
    """A reading process."""

    def __init__(self) -> None:
        roots = [str(Path(warmup_tasks.__file__).resolve().parent.parent), *sys.path]
        self._process = subprocess.Popen(
            [sys.executable, "-c", f"from {__name__} import main; main()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **_KEEP_MEMORY, "PYTHONPATH": os.pathsep.join(filter(None, roots))},
        )
        self._in: Any = self._process.stdin
        self._out: Any = self._process.stdout

    def begin(self, job: Job, number: int) -> None:
        """Hand over the job."""
        self.send((job, number))

    def send(self, message: Any) -> None:
        """Hand over a task, or None as the end; where the process has failed, raise why."""
        try:
            pickle.dump(message, self._in, protocol=pickle.HIGHEST_PROTOCOL)
            self._in.flush()
        except BrokenPipeError:
            self.receive()
            raise self._died() from None

    def receive(self) -> Staged:
        """Return what was staged."""
        try:
            found: Staged | str = pickle.load(self._out)  # noqa: S301 - from our own child
        except (EOFError, pickle.UnpicklingError):
            raise self._died() from None
        if isinstance(found, str):
            raise RuntimeError(f"a reading process failed: {found}")
        return found

    def end(self) -> None:
        """End the process."""
        self._process.kill()
        for pipe in (self._in, self._out):
            with contextlib.suppress(OSError):
                pipe.close()
        self._process.wait(_END_DEADLINE_S)

    def _died(self) -> RetryLaterError:
        status = self._process.wait(_END_DEADLINE_S)
        return RetryLaterError(f"log: a reading process ended with status {status}, perhaps for want of memory")


def _one_by_one(tasks: Iterator[Task], lock: threading.Lock, errors: list[BaseException]) -> Iterator[Task]:
    while not errors:
        with lock:
            task = next(tasks, None)
        if task is None:
            return
        yield task


def _serve(source: BinaryIO, sink: BinaryIO) -> None:
    """Read tasks until the parent ends them, and answer with what was staged, or with where it failed."""
    try:
        job, number = pickle.load(source)  # noqa: S301 - from our own parent
        reader = Reader(job, number)
        while (task := pickle.load(source)) is not None:  # noqa: S301
            reader.read_block(task)
        answer: Staged | str = reader.finish()
    except Exception as error:  # noqa: BLE001 - what it was may hold prompts; where it was does not
        answer = f"{type(error).__name__} at {_place(error.__traceback__)}"
    pickle.dump(answer, sink, protocol=pickle.HIGHEST_PROTOCOL)
    sink.flush()


def _place(trace: TracebackType | None) -> str:
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "?" if trace is None else f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}"


def main() -> None:
    """Be a reading process; what anybody prints goes to the errors, not among the answers."""
    gc.freeze()
    gc.disable()  # records are trees: they go when their batch goes
    with os.fdopen(os.dup(sys.stdout.fileno()), "wb") as answers:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        _serve(sys.stdin.buffer, answers)
