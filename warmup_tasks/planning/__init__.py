"""Decides what is warmed, where, in which order and why: data in, plan out, no network.

``make_plan`` writes the plan; ``DependencyGraph`` says what must wait, and what is skipped when something failed.
"""

from warmup_tasks.planning.graph import DependencyGraph
from warmup_tasks.planning.make import make_plan

__all__ = ["DependencyGraph", "make_plan"]
