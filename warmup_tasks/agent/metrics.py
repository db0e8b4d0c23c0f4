"""The agent's own metrics, in a registry of their own."""

from prometheus_client import CollectorRegistry, Counter, Gauge

from warmup_tasks.agent.run_metrics import RunMetrics
from warmup_tasks.signals import Rolling


class AgentMetrics:
    """What Prometheus scrapes from the agent."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.looks = Counter(
            "warmup_agent_looks", "Looks at a replica that found it.", ["replica"], registry=self.registry
        )
        self.failures = Counter(
            "warmup_agent_look_failures", "Looks at a replica that did not.", ["replica"], registry=self.registry
        )
        self.epochs_begun = Counter(
            "warmup_agent_epochs_begun", "Epochs seen beginning while watching.", ["replica"], registry=self.registry
        )
        self.store_failures = Counter(
            "warmup_agent_store_failures", "Times that Redis did not answer.", registry=self.registry
        )
        self.is_epoch_known = Gauge(
            "warmup_agent_is_epoch_known", "1 while the replica's epoch is published.", ["replica"],
            registry=self.registry,
        )  # fmt: skip
        self.is_ready = Gauge(
            "warmup_is_ready", "1 while the replica is ready for the model.", ["model", "replica"],
            registry=self.registry,
        )  # fmt: skip
        self.qps = Gauge("warmup_live_qps", "Requests a second in the last 30 s.", ["replica"], registry=self.registry)
        self.ttft_p95_ms = Gauge(
            "warmup_live_ttft_p95_ms", "P95 of the time to first token in the last 30 s, ms; NaN: nothing to measure.",
            ["replica"], registry=self.registry,
        )  # fmt: skip
        self.miss_ratio = Gauge(
            "warmup_live_miss_ratio", "Part of prompt tokens not found cached in the last 30 s; NaN: none asked for.",
            ["replica"], registry=self.registry,
        )  # fmt: skip
        self.events = Counter(
            "warmup_live_events", "Events that this agent wrote.", ["replica", "kind"], registry=self.registry
        )
        self.suppressed = Counter(
            "warmup_live_events_suppressed", "Crossings that gave no event.", ["replica", "reason"],
            registry=self.registry,
        )  # fmt: skip
        self.outcomes = Gauge(
            "warmup_reactions", "What became of events: fired, or why not; over the whole site, by Redis' count.",
            ["outcome"], registry=self.registry,
        )  # fmt: skip

        self.runs = RunMetrics(self.registry)

    def show(self, replica: str, figures: Rolling) -> None:
        """Show a replica's live figures."""
        self.qps.labels(replica).set(figures.qps)
        for gauge, value in ((self.ttft_p95_ms, figures.ttft_p95_ms), (self.miss_ratio, figures.miss_ratio)):
            gauge.labels(replica).set(float("nan") if value is None else value)
