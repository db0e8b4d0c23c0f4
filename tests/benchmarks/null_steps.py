"""The steps of a null night, as a DAG file puts them in place: light, since every task reads the DAG file again.

What they do lies in ``null_night.py``, which is read only when a step is at work.
"""

import functools
import json
import resource
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from warmup_tasks import nightly

STEPS = ("extract", "profile", "tune", "plan", "twins", "warm", "probe", "publish", "publish_profile", "report")
MADE_UP = ("extract", "profile")


def install(clock: Path) -> None:
    """Put a made-up demand and engines that do nothing in place of logs and replicas, in this process.

    A run's ``log`` says how many items it wants: ``items=1000``. Each step that ends is written down under ``clock``.
    """
    for name in STEPS:
        setattr(nightly, name, _timed(name, getattr(nightly, name), clock))


def _timed(name: str, step: Callable[..., Any], clock: Path) -> Callable[..., Any]:
    @functools.wraps(step)
    def timed(site: Any, run: Any, *arguments: Any) -> Any:
        begun = time.time()
        try:
            from tests.benchmarks import null_night

            null_night.exchange_engines()
            return (getattr(null_night, name) if name in MADE_UP else step)(site, run, *arguments)
        finally:
            peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            row = {"step": name, "run": run.run_id, "begun": begun, "ended": time.time(), "peak_mb": peak_mb}
            (clock / f"{uuid.uuid4().hex}.json").write_text(json.dumps(row))

    return timed
