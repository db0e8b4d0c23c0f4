"""Proves, or refuses, that what was warmed is resident, right and faster: twins, probes, evidence, marks (spec 6).

Nothing here warms on purpose, and nothing here chooses what to warm.
"""

from warmup_tasks.validation.probes import run_probes
from warmup_tasks.validation.publish import publish
from warmup_tasks.validation.twins import run_twins

__all__ = ["publish", "run_probes", "run_twins"]
