"""Infers cached tokens from counter deltas, for a replica that does not report them in usage (spec 6.5b)."""

from warmup_tasks.engines.base import EngineMetrics


def cached_tokens_between(before: EngineMetrics, after: EngineMetrics, prompt_tokens: int) -> int | None:
    """Return the cached tokens of the one request that ran between two scrapes, or None where that cannot be told.

    Args:
        before: scrape just before sending, with nothing under way.
        after: scrape just after the answer.
        prompt_tokens: the request's prompt length.

    Returns:
        The hits' delta. None where the process restarted, requests were under way, or the queries' delta is not
        exactly this prompt: then other traffic is in the numbers.
    """
    is_quiet = before.running == before.waiting == after.running == after.waiting == 0
    if before.process_start_s != after.process_start_s or not is_quiet:
        return None
    if round(after.prefix_queries_tokens - before.prefix_queries_tokens) != prompt_tokens:
        return None
    hits = round(after.prefix_hits_tokens - before.prefix_hits_tokens)
    return hits if 0 <= hits <= prompt_tokens else None
