"""The outside world *Redis*: values, marks, epochs and readiness, and a reader that hands out only what holds."""

from warmup_tasks.serving.connection import connect

__all__ = ["connect"]
