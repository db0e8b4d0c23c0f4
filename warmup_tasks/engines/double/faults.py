"""What a double can be told to do wrong, at start or while it runs.

Here live the settings (one field a fault) and the seeded decisions which requests they strike. Each fault is acted out
at one place, which its description names.
"""

from collections import Counter
from typing import Any, Literal

import xxhash
from pydantic import BaseModel, ConfigDict, Field


class Chance(BaseModel):
    """Strikes a seeded share of requests, at most ``limit`` of them (None: no limit)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    share: float = Field(default=0.0, ge=0.0, le=1.0)
    limit: int | None = Field(default=None, ge=0)


class Faults(BaseModel):
    """Every fault, off by default."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    ignore_salt: bool = Field(default=False, description="Block keys leave the cache salt out (scheduler).")
    forget_to_evict: bool = Field(default=False, description="A full cache grows instead of evicting (blocks).")
    usage_details: Literal["present", "absent", "null", "null_cached_tokens", "no_usage"] = Field(
        default="present", description="What usage says of cached tokens (responses)."
    )
    wrong_answers: Literal["never", "on_hit", "always"] = Field(
        default="never", description="Answers from a wrong state, with or without a cache hit (scheduler)."
    )
    logprob_drift: float = Field(default=0.0, ge=0.0, description="Noise on each logit, in nats (answers).")
    hit_penalty_ms: float = Field(default=0.0, ge=0.0, description="A step with a cache hit takes longer (scheduler).")
    slow_adapter_load_ms: float = Field(default=0.0, ge=0.0, description="Added to each adapter load (adapters).")
    mixed_batches: bool = Field(
        default=False, description="Beside an adapter's prompts the base model's leave wrong blocks (scheduler)."
    )
    runtime_adapters_off: bool = Field(default=False, description="The adapter endpoints answer 404 (server).")
    hang: Chance = Field(default=Chance(), description="The request is never answered (generation).")
    refuse: Chance = Field(default=Chance(), description="429 (generation).")
    fail: Chance = Field(default=Chance(), description="500 (generation).")
    break_stream: Chance = Field(default=Chance(), description="200, then an error in mid-stream (generation).")
    break_stream_by: Literal["error", "disconnect"] = "error"
    endpoint_status: dict[str, int] = Field(
        default_factory=dict, description="Path → status that it answers with (server)."
    )
    missing_metrics: list[str] = Field(default_factory=list, description="Metric names left out (metrics).")


class FaultBoard:
    """The faults in force, changeable at run time. Which requests a chance strikes depends on seed and order alone."""

    def __init__(self, faults: Faults, seed: int) -> None:
        self._initial = faults
        self._seed = seed
        self._asked: Counter[str] = Counter()
        self.struck: Counter[str] = Counter()
        self.now = faults

    def update(self, changes: dict[str, Any]) -> Faults:
        """Replace the named faults, keep the others. Raises ``pydantic.ValidationError``."""
        self.now = Faults.model_validate(self.now.model_dump() | changes)
        for name in changes:
            self.struck.pop(name, None)
        return self.now

    def restore(self) -> Faults:
        """Return to the faults that the double was started with."""
        self.struck.clear()
        self.now = self._initial
        return self.now

    def strikes(self, name: Literal["hang", "refuse", "fail", "break_stream"]) -> bool:
        """Decide whether this fault strikes the request at hand."""
        chance: Chance = getattr(self.now, name)
        if chance.share <= 0.0 or (chance.limit is not None and self.struck[name] >= chance.limit):
            return False
        self._asked[name] += 1
        drawn = xxhash.xxh3_64_intdigest(f"{self._seed}:{name}:{self._asked[name]}".encode()) / 2**64
        if drawn >= chance.share:
            return False
        self.struck[name] += 1
        return True
