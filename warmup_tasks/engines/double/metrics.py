"""The metrics page: the engine's metric names, labels and bucket bounds.

Here live the instruments of one life of the double; a restart makes new ones, so counters fall to 0 and the process
start time moves.
"""

import time
from collections.abc import Collection

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import generate_latest

from warmup_tasks.engines.double.flights import Flight

_LATENCY_S = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
_FIRST_TOKEN_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560),
)
_NEXT_TOKEN_S = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1, 2.5, 5, 7.5, 10, 20, 40, 80),
)
_STEP_TOKENS = tuple(2**n for n in (0, *range(3, 15)))
_LABELS = ("model_name", "engine")


class Metrics:
    """All instruments under one registry."""

    def __init__(self, model: str, max_model_len: int, cache: dict[str, str], max_loras: int) -> None:
        self.registry = CollectorRegistry()
        self._values = (model, "0")
        self.process_start_s = time.time()
        self._max_loras = str(max_loras)
        gauge, counter, histogram = self._gauge, self._counter, self._histogram
        start = Gauge("process_start_time_seconds", "Start time of the process since unix epoch in seconds.",
                      registry=self.registry)  # fmt: skip
        start.set(self.process_start_s)
        info = Gauge("vllm:cache_config_info", "Information of the LLMEngine CacheConfig", [*cache, "engine"],
                     registry=self.registry)  # fmt: skip
        info.labels(*cache.values(), "0").set(1)
        self.lora_info = Gauge(
            "vllm:lora_requests_info",
            "Running stats on lora requests.",
            ["max_lora", "waiting_lora_adapters", "running_lora_adapters"],
            registry=self.registry,
        )
        self.running = gauge("num_requests_running", "Number of requests in model execution batches.")
        self.waiting = gauge("num_requests_waiting", "Number of requests waiting to be processed.")
        self.usage = gauge("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.")
        self.sleep_state = Gauge("vllm:engine_sleep_state", "Engine sleep state.", [*_LABELS, "sleep_state"],
                                 registry=self.registry)  # fmt: skip
        self.set_sleep_level(None)
        self.queries = counter("prefix_cache_queries", "Prefix cache queries, in number of queried tokens.")
        self.hits = counter("prefix_cache_hits", "Prefix cache hits, in number of cached tokens.")
        counter("external_prefix_cache_queries", "External prefix cache queries, in number of queried tokens.")
        counter("external_prefix_cache_hits", "External prefix cache hits, in number of cached tokens.")
        self.preemptions = counter("num_preemptions", "Cumulative number of preemption from the engine.")
        self.prompt_tokens = counter("prompt_tokens", "Number of prefill tokens processed.")
        self.prompt_tokens_cached = counter("prompt_tokens_cached", "Number of cached prompt tokens.")
        by_source = Counter("vllm:prompt_tokens_by_source", "Number of prompt tokens by source.",
                            [*_LABELS, "source"], registry=self.registry)  # fmt: skip
        self.computed_locally = by_source.labels(*self._values, "local_compute")
        self.hit_locally = by_source.labels(*self._values, "local_cache_hit")
        by_source.labels(*self._values, "external_kv_transfer")
        self.generation_tokens = counter("generation_tokens", "Number of generation tokens processed.")
        success = Counter("vllm:request_success", "Count of successfully processed requests.",
                          [*_LABELS, "finished_reason"], registry=self.registry)  # fmt: skip
        self.finished = {r: success.labels(*self._values, r) for r in ("stop", "length", "abort", "error")}
        request_tokens = [m * 10**e for e in range(8) for m in (1, 2, 5) if m * 10**e <= max_model_len]
        self.request_prompt = histogram("request_prompt_tokens", "Prompt tokens.", request_tokens)
        self.request_generation = histogram("request_generation_tokens", "Generated tokens.", request_tokens)
        self.request_max_tokens = histogram("request_params_max_tokens", "The max_tokens parameter.", request_tokens)
        self.computed = histogram(
            "request_prefill_kv_computed_tokens", "New KV tokens computed during prefill.", request_tokens
        )
        self.step_tokens = histogram("iteration_tokens_total", "Number of tokens per engine_step.", _STEP_TOKENS)
        self.first_token_s = histogram("time_to_first_token_seconds", "Time to first token.", _FIRST_TOKEN_S)
        self.next_token_s = histogram("inter_token_latency_seconds", "Inter-token latency.", _NEXT_TOKEN_S)
        self.request_s = histogram("e2e_request_latency_seconds", "End-to-end request latency.", _LATENCY_S)
        self.queue_s = histogram("request_queue_time_seconds", "Time in the WAITING phase.", _LATENCY_S)
        self.inference_s = histogram("request_inference_time_seconds", "Time in the RUNNING phase.", _LATENCY_S)
        self.prefill_s = histogram("request_prefill_time_seconds", "Time in the PREFILL phase.", _LATENCY_S)
        self.decode_s = histogram("request_decode_time_seconds", "Time in the DECODE phase.", _LATENCY_S)

    def observe_token(self, flight: Flight, now_s: float) -> None:
        """Count one generated token, and the prompt with the first one."""
        self.generation_tokens.inc()
        if flight.first_token_s is not None:
            self.next_token_s.observe(now_s - flight.last_token_s)
        else:
            flight.first_token_s = now_s
            cached = flight.cached_tokens or 0
            self.first_token_s.observe(now_s - flight.arrived_s)
            self.prompt_tokens.inc(flight.prompt_tokens)
            self.prompt_tokens_cached.inc(cached)
            self.computed_locally.inc(flight.prompt_tokens - cached)
            self.hit_locally.inc(cached)
        flight.last_token_s = now_s

    def observe_end(self, flight: Flight, reason: str, now_s: float) -> None:
        """Count one request that came to its end."""
        scheduled_s = flight.scheduled_s or flight.arrived_s
        first_s = flight.first_token_s or now_s
        self.finished[reason].inc()
        self.request_prompt.observe(flight.prompt_tokens)
        self.request_generation.observe(len(flight.draws))
        self.request_max_tokens.observe(flight.max_tokens)
        self.computed.observe(flight.prompt_tokens - (flight.cached_tokens or 0))
        self.request_s.observe(now_s - flight.arrived_s)
        self.queue_s.observe(scheduled_s - flight.arrived_s)
        self.inference_s.observe(now_s - scheduled_s)
        self.prefill_s.observe(first_s - scheduled_s)
        self.decode_s.observe(now_s - first_s)

    def set_sleep_level(self, level: int | None) -> None:
        """Show the sleep state; None is awake."""
        states = {"awake": level is None, "weights_offloaded": level == 1, "discard_all": level == 2}
        for state, is_on in states.items():
            self.sleep_state.labels(*self._values, state).set(int(is_on))

    def set_adapters(self, waiting: Collection[str], running: Collection[str]) -> None:
        """Note which adapters requests wait for and run with; like the engine's, no proof of residency."""
        self.lora_info.labels(self._max_loras, ",".join(waiting), ",".join(running)).set(time.time())

    def page(self, without: Collection[str] = ()) -> bytes:
        """Return the page in the text format, without the named metrics (a fault)."""
        page = generate_latest(self.registry)
        if not without:
            return page
        kept = (line for line in page.splitlines() if not _is_named(line.decode(), without))
        return b"\n".join(kept) + b"\n"

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"vllm:{name}", text, _LABELS, registry=self.registry).labels(*self._values)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(f"vllm:{name}", text, _LABELS, registry=self.registry).labels(*self._values)

    def _histogram(self, name: str, text: str, buckets: Collection[float]) -> Histogram:
        made = Histogram(f"vllm:{name}", text, _LABELS, registry=self.registry, buckets=tuple(buckets))
        return made.labels(*self._values)


def _is_named(line: str, names: Collection[str]) -> bool:
    name = line.split()[2] if line.startswith("#") else line.partition("{")[0].partition(" ")[0]
    return name in names or any(name.removesuffix(end) in names for end in ("_total", "_created", "_bucket", "_sum"))
