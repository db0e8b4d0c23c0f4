"""The golden parameters: twelve dimensions, one typed model (spec 4.4).

A new parameter is one field here; the Params form, the configuration file, the tuner's search space, the report and the
docs follow from the field's metadata. Evaluation constants (windows, weights, horizons) are not parameters.
"""

import re
from enum import StrEnum
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from warmup_tasks.errors import ConfigurationError
from warmup_tasks.identity import digest


class PrefetchStrategy(StrEnum):
    """How KV prefixes are chosen (spec 4.2): by count, by predicted reuse, or per traffic class."""

    STATIC = "static"
    DYNAMIC = "dynamic"
    ADAPTIVE = "adaptive"


Sensitivity = Literal["low", "medium", "high"]
Retune = Literal["nightly", "weekly", "on model release"]


def _parameter(default: Any, *, unit: str, sensitivity: Sensitivity, retune: Retune, doc: str, **bounds: Any) -> Any:
    extra: dict[str, Any] = {"unit": unit, "sensitivity": sensitivity, "retune": retune}
    return Field(default, description=doc, json_schema_extra=extra, **bounds)


class GoldenParameters(BaseModel):
    """The twelve tuned dimensions (spec 4.4). Frozen; unknown names are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    warmup_window_s: int = _parameter(
        300, ge=60, le=86_400, unit="s", sensitivity="medium", retune="nightly", doc="History that counts as now."
    )
    cache_granularity_tokens: int | None = _parameter(
        None,
        ge=1,
        le=4096,
        unit="tokens",
        sensitivity="low",
        retune="on model release",
        doc="Smallest prefix step, a multiple of the engine's block size; empty takes the block size itself.",
    )
    prefetch_depth: int = _parameter(
        3,
        ge=1,
        le=8,
        unit="levels",
        sensitivity="high",
        retune="nightly",
        doc="Levels of branching of the prefix tree below a chosen node.",
    )
    prefetch_strategy: PrefetchStrategy = _parameter(
        PrefetchStrategy.ADAPTIVE,
        unit="name",
        sensitivity="high",
        retune="weekly",
        doc="Choose by count (static), by predicted reuse (dynamic), or per traffic class (adaptive).",
    )
    stale_threshold_ms: int = _parameter(
        5000,
        ge=500,
        le=60_000,
        unit="ms",
        sensitivity="medium",
        retune="weekly",
        doc="Inputs older than this at ingest do not count in online learning.",
    )
    heat_tau_fast_s: float = _parameter(
        30.0, ge=5, le=604_800, unit="s", sensitivity="medium", retune="nightly", doc="Fast decay of the heat."
    )
    heat_tau_slow_s: float = _parameter(
        21_600.0, ge=5, le=604_800, unit="s", sensitivity="high", retune="nightly", doc="Slow decay of the heat."
    )
    top_k: int = _parameter(
        200,
        ge=10,
        le=100_000,
        unit="items",
        sensitivity="medium",
        retune="nightly",
        doc="Clusters, prompts and prefixes that are considered.",
    )
    similarity_threshold: float = _parameter(
        0.92, ge=0.7, le=0.999, unit="cosine", sensitivity="high", retune="weekly", doc="From here on: same intent."
    )
    trigger_threshold_ms: float = _parameter(
        500.0, ge=20, le=5000, unit="ms", sensitivity="high", retune="nightly", doc="P95 that fires a passive warm-up."
    )
    budget_share: float = _parameter(
        0.6,
        ge=0.05,
        le=0.9,
        unit="share",
        sensitivity="high",
        retune="nightly",
        doc="Of a replica's cache, for warm items.",
    )
    concurrency: int = _parameter(
        4, ge=1, le=64, unit="requests", sensitivity="medium", retune="weekly", doc="Requests under way per replica."
    )
    lead_time_s: int = _parameter(
        1800,
        ge=60,
        le=14_400,
        unit="s",
        sensitivity="medium",
        retune="weekly",
        doc="Be ready so long before the forecast peak.",
    )

    def version(self) -> str:
        """Return a short digest of the values, for plan rows."""
        return digest(self.model_dump(mode="json"))[:12]


def load_parameters(values: dict[str, Any]) -> GoldenParameters:
    """Return validated parameters, or raise ``ConfigurationError`` naming each refused field and what it takes."""
    try:
        return GoldenParameters.model_validate(values)
    except ValidationError as error:
        raise ConfigurationError(explain(error, "parameters")) from None


def explain(error: ValidationError, what: str) -> str:
    """Return the validation problems as one line a field: name, what is wrong, without echoing long values."""
    lines = [f"{what} refused:"]
    for problem in error.errors(include_url=False, include_context=False):
        value, message = problem.get("input"), problem["msg"].removeprefix("Value error, ")
        shown = re.sub(r"://[^/@]*@", "://…@", repr(value))  # a refused address may hold a password
        got = (
            "" if isinstance(value, dict | BaseModel) else f" (got {shown if len(shown) <= 60 else shown[:57] + '...'})"
        )
        lines.append(f"  - {'.'.join(str(p) for p in problem['loc']) or what}: {message}{got}")
    return "\n".join(lines)
