"""One run: what was asked, under which policy and parameters, and the id that its partitions carry.

The id follows from as_of and the wishes alone, so a cleared and rerun task finds the partitions of its first try.
"""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Self

from pydantic import BaseModel, ConfigDict

from warmup_tasks.errors import ConfigurationError
from warmup_tasks.identity import digest
from warmup_tasks.parameters import GoldenParameters, load_parameters
from warmup_tasks.releases import Release
from warmup_tasks.settings import RunPolicy, RunRequest, validate


class Origins(BaseModel):
    """Where a run's parameters come from; those named nowhere have their default.

    Attributes:
        tuning_ref: the partition in the lake that tuned values were taken from; None: there was none to take.
        tuned: parameter → the night that tuned it last.
        set_by_operator: names; these win over tuned values.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    tuning_ref: str | None = None
    tuned: dict[str, datetime] = {}
    set_by_operator: tuple[str, ...] = ()

    def told(self, name: str) -> str:
        """Return in words where a parameter's value comes from."""
        if name in self.set_by_operator:
            return "set by the operator"
        return f"tuned on {self.tuned[name]:%Y-%m-%d}" if name in self.tuned else "default"


class Run(BaseModel):
    """A run, small enough to travel through XCom as JSON: no prompt, no data, no secret."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    run_id: str
    as_of: datetime
    request: RunRequest
    policy: RunPolicy
    parameters: GoldenParameters
    origins: Origins = Origins()
    release: Release | None = None

    @classmethod
    def of(
        cls,
        request: RunRequest,
        policy: RunPolicy | None = None,
        parameters: GoldenParameters | None = None,
        *,
        default_as_of: datetime | None = None,
        origins: Origins | None = None,
    ) -> Self:
        """Return the run for a request.

        Args:
            request: the operator's wishes; its ``as_of`` wins over the default.
            policy: evaluation constants.
            parameters: golden parameters.
            default_as_of: the data interval's end of a scheduled run.
            origins: of the parameters; None: all are defaults, or nobody asks.

        Raises:
            ConfigurationError: no as_of anywhere, or one without a time zone.
        """
        as_of = time_of(request, default_as_of)
        policy, parameters = policy or RunPolicy(), parameters or GoldenParameters()
        asked = request.model_copy(update={"as_of": as_of})
        if asked.max_twins is not None:
            policy = policy.model_copy(update={"max_twins_per_replica": asked.max_twins})
        wishes = [part.model_dump(mode="json") for part in (asked, policy, parameters)]
        run_id = f"{as_of:%Y%m%dT%H%M%SZ}-{digest(wishes)[:8]}"
        return cls(
            run_id=run_id,
            as_of=as_of,
            request=asked,
            policy=policy,
            parameters=parameters,
            origins=origins or Origins(),
        )

    def in_release(self, release: Release) -> Self:
        """Return the run as part of a release, under an id of its own."""
        wishes = [self.run_id, *(part.model_dump(mode="json") for part in (self.request, release))]
        run_id = f"{self.as_of:%Y%m%dT%H%M%SZ}-{digest(wishes)[:8]}"
        return self.model_copy(update={"run_id": run_id, "release": release})

    def is_over(self, now: datetime) -> bool:
        """Say whether the horizon that the plan is made for has passed: nobody will ask for what it would warm."""
        return self.as_of + timedelta(seconds=self.policy.horizon_s) <= now


def time_of(request: RunRequest, default_as_of: datetime | None = None) -> datetime:
    """Return the time that a run plans from, UTC.

    Raises:
        ConfigurationError: no as_of anywhere, or one without a time zone.
    """
    as_of = request.as_of or default_as_of
    if as_of is None:
        raise ConfigurationError("as_of: give the time to plan from, such as 2026-11-27T02:00:00+00:00")
    if as_of.tzinfo is None:
        raise ConfigurationError(f"as_of: {as_of.isoformat()} has no time zone; write for instance +00:00 behind it")
    return as_of.astimezone(UTC)


def wishes_of(values: Mapping[str, Any], what: str = "params") -> tuple[RunRequest, dict[str, Any]]:
    """Return a run's request, and the parameters that an operator set, from names and values of a form or options.

    Args:
        values: field of :class:`RunRequest` or :class:`GoldenParameters` → value. Absent fields of the request take
            their default; a parameter that is absent or null is not set: tuning decides, else its default stands.
        what: where they stand, for the message.

    Raises:
        ConfigurationError: a value has the wrong type or range, or a name is unknown; the message names it.
    """
    request = {name: value for name, value in values.items() if name not in GoldenParameters.model_fields}
    asked = validate(request, RunRequest, what)
    given = {name: values[name] for name in GoldenParameters.model_fields if values.get(name) is not None}
    known = load_parameters(given).model_dump(mode="json")
    return asked, {name: known[name] for name in given}
