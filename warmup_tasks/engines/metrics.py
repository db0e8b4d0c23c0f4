"""Reads vLLM's Prometheus text into :class:`EngineMetrics`. A missing metric is an error, never 0."""

from collections.abc import Iterable

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from warmup_tasks.engines.base import EngineMetrics
from warmup_tasks.errors import MissingMetricError

PROCESS_START = "process_start_time_seconds"
PREFIX_QUERIES = "vllm:prefix_cache_queries_total"
PREFIX_HITS = "vllm:prefix_cache_hits_total"
PROMPT_TOKENS = "vllm:prompt_tokens_total"
KV_USAGE = "vllm:kv_cache_usage_perc"
RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting"
CACHE_CONFIG = "vllm:cache_config_info"
SLEEP_STATE = "vllm:engine_sleep_state"
ADAPTERS = "vllm:lora_requests_info"
FIRST_TOKENS = "vllm:time_to_first_token_seconds_bucket"

_WANTED = {PROCESS_START, PREFIX_QUERIES, PREFIX_HITS, PROMPT_TOKENS, KV_USAGE, RUNNING, WAITING, CACHE_CONFIG}
_WELCOME = _WANTED | {SLEEP_STATE, ADAPTERS, FIRST_TOKENS}
_RETIRED = ("vllm:gpu_prefix_cache_", "vllm:gpu_cache_usage_perc")


def parse_metrics(text: str) -> EngineMetrics:
    """Return what one scrape says.

    Args:
        text: the body of ``/metrics``. Where one address speaks for several engine processes, counters and queues are
            summed, the usage is the fullest cache's.

    Raises:
        MissingMetricError: a metric is absent, or the block size or the number of blocks is not told.
    """
    samples = _wanted_samples(text)
    missing = sorted(_WANTED - set(samples))
    if missing:
        hint = ""
        if any(line.startswith(_RETIRED) for line in text.splitlines()):
            hint = "; the engine still exposes the retired gpu_* names: use vLLM 0.32 or later"
        raise MissingMetricError(f"/metrics does not have {', '.join(missing)}{hint}")
    configs = [sample.labels for sample in samples[CACHE_CONFIG]]
    return EngineMetrics(
        process_start_s=max(_values(samples[PROCESS_START])),
        prefix_queries_tokens=sum(_values(samples[PREFIX_QUERIES])),
        prefix_hits_tokens=sum(_values(samples[PREFIX_HITS])),
        prompt_tokens=sum(_values(samples[PROMPT_TOKENS])),
        kv_usage_share=max(_values(samples[KV_USAGE])),
        running=sum(_values(samples[RUNNING])),
        waiting=sum(_values(samples[WAITING])),
        block_size=_label_number(configs[0], "block_size"),
        capacity_blocks=sum(_label_number(labels, "num_gpu_blocks") for labels in configs),
        is_awake=_is_awake(samples.get(SLEEP_STATE, [])),
        max_adapters=_max_adapters(samples.get(ADAPTERS, [])),
        first_tokens=_cumulative(samples.get(FIRST_TOKENS, [])),
    )


def _wanted_samples(text: str) -> dict[str, list[Sample]]:
    """Return the samples of the wanted metrics by name; the rest of a long page is not even parsed."""
    lines = [line for line in text.splitlines() if line.split("{", 1)[0].split(" ", 1)[0] in _WELCOME]
    found: dict[str, list[Sample]] = {}
    for family in text_string_to_metric_families("\n".join(lines) + "\n"):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample)
    return found


def _is_awake(samples: Iterable[Sample]) -> bool | None:
    told = [sample.value == 1 for sample in samples if sample.labels.get("sleep_state") == "awake"]
    return all(told) if told else None


def _max_adapters(samples: Iterable[Sample]) -> int | None:
    told = [sample.labels.get("max_lora", "") for sample in samples]
    slots = [int(value) for value in told if value.isdecimal() and int(value) > 0]
    return min(slots, default=None)


def _cumulative(samples: Iterable[Sample]) -> tuple[tuple[float, float], ...]:
    """Return (upper bound, count) of a histogram's buckets, cumulative, over all engines and models of the page."""
    counts: dict[float, float] = {}
    for sample in samples:
        bound = float(sample.labels["le"])
        counts[bound] = counts.get(bound, 0.0) + sample.value
    return tuple(sorted(counts.items()))


def _values(samples: Iterable[Sample]) -> list[float]:
    return [float(sample.value) for sample in samples]


def _label_number(labels: dict[str, str], name: str) -> int:
    try:
        return int(labels[name])
    except (KeyError, ValueError):
        raise MissingMetricError(f"{CACHE_CONFIG} does not tell {name} (got {labels.get(name)!r})") from None
