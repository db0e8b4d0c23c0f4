"""The agent's own metrics, in a registry of their own."""

from prometheus_client import CollectorRegistry, Counter, Gauge


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
