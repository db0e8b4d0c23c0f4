"""What tuning must know of the replicas that serve a model: from the survey, or by hand where there is no fleet."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from warmup_tasks.items import ReplicaState
from warmup_tasks.replay.latency import LatencyModel


@dataclass(frozen=True, slots=True)
class Replicas:
    """The replicas of one model, taken as alike: the smallest cache, the mean speed.

    Attributes:
        model: served name; None: any model.
        count: how many share the traffic, dealt in turn.
        block_tokens: tokens a cache block holds.
        capacity_tokens: tokens that each cache holds.
        latency: how long a prompt takes.
    """

    model: str | None
    count: int
    block_tokens: int
    capacity_tokens: int
    latency: LatencyModel


def of_survey(states: Sequence[ReplicaState]) -> list[Replicas]:
    """Return the surveyed replicas, one entry a model."""
    own = {model: [state for state in states if state.model == model] for model in {state.model for state in states}}
    return [
        Replicas(
            model,
            len(found),
            found[0].block_size,
            min(state.capacity_tokens for state in found),
            LatencyModel(fmean(state.base_ms for state in found), fmean(state.prefill_ms_per_token for state in found)),
        )
        for model, found in sorted(own.items())
    ]


def serving(replicas: Sequence[Replicas], model: str) -> Replicas | None:
    """Return who serves a model; None: nobody."""
    return next((one for one in replicas if one.model in (model, None)), None)
