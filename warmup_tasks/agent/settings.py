"""What the agent is told at start."""

from typing import Self

from pydantic import Field, model_validator

from warmup_tasks.serving.epochs import MAX_TTL_S
from warmup_tasks.settings import Strict
from warmup_tasks.signals import Conditions


class AgentSettings(Strict):
    """Where the agent listens and how it watches.

    An epoch must outlive the time from one look to the next, and must end soon after the last look.
    """

    host: str = Field("127.0.0.1", description="Address to listen on; 0.0.0.0 in a container.")
    port: int = Field(9400, ge=0, le=65_535, description="0 takes a free one.")
    poll_s: float = Field(2.0, gt=0, description="Pause between two looks at a replica.")
    poll_deadline_s: float = Field(4.0, gt=0, description="How long one look may take.")
    sentinel_s: float = Field(
        5.0, ge=0, le=10.0, description="Pause between two looks at the sentinel block; 0 does without it."
    )
    qps_ratio: float | None = Field(
        2.0, gt=1, description="So many times the requests a second of the 5 minutes before are a surge; empty: none."
    )
    least_qps: float = Field(1.0, ge=0, description="Fewer requests a second are no surge, whatever the ratio.")
    miss_rise: float | None = Field(
        0.2, gt=0, lt=1, description="Miss ratio so far above that of the 5 minutes before is a jump; empty: none."
    )
    thresholds_s: float = Field(600.0, gt=0, description="Pause between two looks at the tuned thresholds in the lake.")
    members_s: float = Field(15.0, gt=0, description="Pause between two looks at who is in the fleet.")
    epoch_ttl_s: float = Field(10.0, gt=0, le=MAX_TTL_S, description="How long a published epoch lives unrenewed.")

    def conditions(self) -> Conditions:
        """Return the signals that are or-ed with the P95."""
        return Conditions(qps_ratio=self.qps_ratio, least_qps=self.least_qps, miss_rise=self.miss_rise)

    @model_validator(mode="after")
    def _epoch_outlives_a_round(self) -> Self:
        round_s = self.poll_s + self.poll_deadline_s
        if round_s >= self.epoch_ttl_s:
            raise ValueError(
                f"poll_s + poll_deadline_s is {round_s:g} s, which must stay below epoch_ttl_s ({self.epoch_ttl_s:g} s)"
            )
        return self
