"""Tuning over a log alone, before there is a fleet: what stands in for the survey, and the time to tune for."""

from datetime import UTC, datetime, timedelta

from warmup_tasks.errors import ConfigurationError
from warmup_tasks.lake.store import Lake
from warmup_tasks.replay.latency import LatencyModel
from warmup_tasks.replay.logs import LoggedAccesses, read_accesses
from warmup_tasks.tuning.replicas import Replicas


def replicas_of_log(
    lake: Lake,
    capacity_tokens: int,
    *,
    count: int = 1,
    block_tokens: int = 16,
    line_ms: tuple[float, float] | None = None,
) -> tuple[Replicas, datetime]:
    """Return replicas as fast as the log says its own were, for any model, and the time just after its last request.

    Args:
        lake: holds the log.
        capacity_tokens: of each replica's cache.
        count: how many share the traffic.
        block_tokens: for prompts; block hashes bring their own.
        line_ms: time to first token of an empty prompt, and more for each uncached token; None: fitted to the log.

    Raises:
        ConfigurationError: the log has no usable request, or nothing to fit the line to.
    """
    logged = read_accesses(lake, block_tokens=block_tokens)
    latency = _fitted(logged) if line_ms is None else LatencyModel(*line_ms)
    end = datetime.fromtimestamp(float(logged.accesses.times_s[-1]), UTC) + timedelta(milliseconds=1)
    return Replicas(None, count, logged.accesses.block_tokens, capacity_tokens, latency), end


def any_name(model: str | None, adapter: str | None) -> tuple[str, str | None]:
    """Take a log's names as they are; a log without models has one."""
    return model or "model", adapter


def _fitted(logged: LoggedAccesses) -> LatencyModel:
    try:
        return LatencyModel.fitted(logged.accesses.prompt_tokens.astype(float), logged.cached_tokens, logged.ttft_ms)
    except ConfigurationError:
        raise ConfigurationError(
            "the log does not tell how fast its replicas were (time to first token and cached tokens of 20 requests): "
            "give --base-ms, the time to first token of a short prompt, and --ms-per-token"
        ) from None
