"""The steps of a nightly run, one function each: the DAG and the command line call these and nothing else.

Each step takes the site and the run, works through the lake and Redis, and returns a small summary (never data, never
prompts). Each is idempotent: a second call with the same arguments leaves the same state. No decision is taken here.
"""

from typing import Any

from warmup_tasks.runs import Run
from warmup_tasks.settings import Site

Summary = dict[str, Any]


def extract(site: Site, run: Run) -> Summary:
    """Read the log into the lake's day partitions."""
    raise NotImplementedError


def profile(site: Site, run: Run) -> Summary:
    """Survey the replicas and turn the requests before as_of into demand: heat, prefixes, adapters, prompts."""
    raise NotImplementedError


def plan(site: Site, run: Run) -> Summary:
    """Choose and order the items; the summary's ``shards`` maps profile → wave (as text) → shard ids."""
    raise NotImplementedError


def replay(site: Site, run: Run, profile: str, arm: str) -> Summary:
    """Replay the first requests after as_of against one profile's replicas, ``arm`` being ``cold`` or ``warm``."""
    raise NotImplementedError


def twins(site: Site, run: Run, profile: str) -> Summary:
    """Ask the cold twins of the sampled items, before anything is warmed (spec 6.1)."""
    raise NotImplementedError


def warm(site: Site, run: Run, shard: str) -> Summary:
    """Warm one shard and write its receipts."""
    raise NotImplementedError


def probe(site: Site, run: Run, profile: str) -> Summary:
    """Probe one profile's replicas, hottest first, and write the evidence (spec 6.4, 6.5)."""
    raise NotImplementedError


def publish(site: Site, run: Run) -> Summary:
    """Check the evidence as a whole and publish marks and readiness for what passed (spec 6.6)."""
    raise NotImplementedError


def report(site: Site, run: Run, folder: str) -> Summary:
    """Write ``summary.json`` and ``report.html`` into ``folder`` and return the summary."""
    raise NotImplementedError
