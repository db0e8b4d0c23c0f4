"""What happens to the tasks of an Airflow run in this process: told as it happens, and summed up.

Airflow's listeners call :class:`TaskEvents` when a task begins and ends. Nothing here changes a run.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any


@dataclass(frozen=True)
class TaskEvent:
    """One task began or ended.

    Attributes:
        task: ``task_id``, or ``task_id[index]`` where it is mapped.
        stage: name of the task's function.
        state: ``running``, or what Airflow calls the state in which it ended.
        seconds: how long it took; None when it begins.
        error: class and message of the error that ended it, or None.
    """

    task: str
    stage: str
    state: str
    seconds: float | None = None
    error: str | None = None


def task_label(task_id: str, map_index: int | None) -> str:
    """Return the name of one task instance."""
    return task_id if map_index is None or map_index < 0 else f"{task_id}[{map_index}]"


class TaskEvents:
    """Passes the events of one DAG's tasks on and keeps the seconds by stage and the first error.

    Attributes:
        stage_seconds: stage → seconds spent in its tasks, retries included.
        first_error: task, class and message of the first failure that no retry mended, or None.
    """

    def __init__(
        self,
        dag: Any,
        on_task: Callable[[TaskEvent], None] | None,
        aloud: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self.stage_seconds: dict[str, float] = {}
        self.first_error: str | None = None
        self._dag, self._on_task, self._aloud = dag, on_task, aloud
        self._started: dict[str, float] = {}

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Listen to Airflow while the block runs."""
        from airflow.listeners import hookimpl
        from airflow.sdk.listener import get_listener_manager

        def began(task_instance: Any) -> None:
            self._began(task_instance)

        def ended(task_instance: Any) -> None:
            self._ended(task_instance)

        def failed(task_instance: Any, error: object) -> None:
            self._ended(task_instance, error)

        listener = SimpleNamespace(
            on_task_instance_running=hookimpl(began),
            on_task_instance_success=hookimpl(ended),
            on_task_instance_skipped=hookimpl(ended),
            on_task_instance_failed=hookimpl(failed),
        )
        manager = get_listener_manager()
        manager.add_listener(listener)
        try:
            yield
        finally:
            manager.pm.unregister(listener)

    def _began(self, instance: Any) -> None:
        if stage := self._stage(instance):
            label = task_label(instance.task_id, instance.map_index)
            self._started[label] = time.perf_counter()
            self._tell(TaskEvent(label, stage, "running"))

    def _ended(self, instance: Any, error: object = None) -> None:
        if stage := self._stage(instance):
            label, state = task_label(instance.task_id, instance.map_index), instance.state.value
            seconds = time.perf_counter() - self._started.pop(label)
            self.stage_seconds[stage] = self.stage_seconds.get(stage, 0.0) + seconds
            what = None if error is None else f"{type(error).__name__}: {error}"
            if state == "failed" and self.first_error is None:
                self.first_error = f"{label}: {what}"
            self._tell(TaskEvent(label, stage, state, seconds, what))

    def _stage(self, instance: Any) -> str | None:
        """Return the name of the task's function; joints have none, and nothing to tell."""
        task = self._dag.get_task(instance.task_id)
        function = getattr(task, "python_callable", None) or getattr(task, "partial_kwargs", {}).get("python_callable")
        return getattr(function, "__name__", None)

    def _tell(self, event: TaskEvent) -> None:
        if self._on_task is not None:
            with self._aloud():
                self._on_task(event)
