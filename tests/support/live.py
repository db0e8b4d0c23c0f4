"""What tests of live sites share: an environment of their own, and a look at which processes are left."""

import os
import re
from pathlib import Path


def clean_environment() -> dict[str, str]:
    """A site brings its own Airflow; what a test session set up for itself must not leak into it."""
    return {name: value for name, value in os.environ.items() if not re.match("AIRFLOW|WARMUP_(?!VLLM_VENV)", name)}


def processes_that_mention(text: str) -> list[int]:
    """Processes other than this one whose command line or environment holds a text."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                known = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
            except OSError:
                continue
            if text.encode() in known:
                found.append(int(entry.name))
    return found
