"""What live events set off: which replicas are warmed on the spot, by what run, and why others are not (spec 1.1, 2.3).

A new life of a cache is warmed as the newest night would have it; a surge gets what was asked for in the minutes
before. Both go at a pace that spares live traffic. The steps are those of a night; here stands what differs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from warmup_tasks import nightly
from warmup_tasks.fleet_file import FleetFile, ReplicaSpec
from warmup_tasks.fleets import present_fleet
from warmup_tasks.items import ItemKind
from warmup_tasks.runs import Run
from warmup_tasks.settings import RunPolicy, RunRequest, Site

if TYPE_CHECKING:
    import redis as redis_client

    from warmup_tasks.serving.events import LiveEvent

Summary = dict[str, Any]
COOLDOWN = timedelta(minutes=5)
"""What a surge's warm-up saves is counted for so long (spec 2.3); the next one waits until then."""
STALE_AFTER = timedelta(minutes=15)
"""A surge that old has passed."""
SURGE_BUDGET_SHARE = 0.25
"""A surge's warm-up fills at most so much of a cache that already serves."""
SURGE_HORIZON_S = 300
TWINS_PER_STRATUM, TWINS_PER_REPLICA = 3, 12
"""Fewer than at night: the replica waits for its readiness, and its neighbours were measured at night."""


class Outcome(StrEnum):
    """What became of an event."""

    FIRED = "fired"
    ABSORBED = "another event of the replica says more"
    UNKNOWN_REPLICA = "the fleet file does not list the replica"
    EPOCH_PASSED = "its epoch has passed"
    READY = "the replica is ready"
    DOUBLED = "a run has taken it up already"
    COOLING = "cooling down"
    STALE = "too old"
    UNDER_WAY = "another task works on the replica"
    NO_DEMAND = "no night has worked out a demand of its model"


@dataclass
class _Case:
    """All events of one replica that one run was given: the newest new life decides, else the newest surge."""

    replica: str
    event: "LiveEvent"
    ids: list[str] = field(default_factory=list)

    @property
    def is_life(self) -> bool:
        return not self.event.signals

    def add(self, event_id: str, event: "LiveEvent") -> None:
        self.ids.append(event_id)
        self.event = max(event, self.event, key=lambda one: (not one.signals, one.time))  # of equal ones the later


def weigh(site: Site, events: Sequence[Mapping[str, Any]], run_name: str, moment: datetime) -> Summary:
    """Decide what a run does about the events that it was given; asked again under the same name, it decides the same.

    Args:
        site: the site.
        events: as the trigger hands them on: the fields of a live event, and its ``id``.
        run_name: of the Airflow run, which then owns the reaction.
        moment: now.

    Returns:
        ``joined`` and ``surged``: names of replicas to be warmed; ``outcomes``: what became of the events, counted.

    Raises:
        RetryLaterError: Redis does not answer.
    """
    from warmup_tasks.serving import connect
    from warmup_tasks.serving.events import EventStream, LiveEvent, Reaction

    fleet, cases = present_fleet(site), dict[str, _Case]()
    for row in events:
        told = LiveEvent.model_validate({name: value for name, value in row.items() if name != "id"})
        cases.setdefault(told.replica, _Case(told.replica, told)).add(str(row["id"]), told)
    joined, surged, counted = list[str](), list[str](), list[str]()
    with connect(site.redis_url) as redis:
        stream = EventStream(redis)
        for case in cases.values():
            outcome = _outcome(site, redis, fleet, case, run_name, moment)
            counted += [outcome, *[Outcome.ABSORBED] * (len(case.ids) - 1)]
            if outcome is Outcome.FIRED:
                (joined if case.is_life else surged).append(case.replica)
                known = {"replica": case.replica, "epoch": case.event.epoch, "kind": case.event.kind}
                stream.react(Reaction(run=run_name, time=moment, event_ids=case.ids, **known))
        stream.count(counted)
    outcomes = {str(one): counted.count(one) for one in Outcome if one in counted}
    return {"joined": sorted(joined), "surged": sorted(surged), "outcomes": outcomes}


def by_hand(site: Site, replicas: Sequence[str], *, is_surge: bool) -> Summary:
    """Return what an operator asks for, as :func:`weigh` does; without names, all replicas that are not ready.

    Raises:
        ConfigurationError: the fleet file does not list a replica.
    """
    from warmup_tasks.serving import connect
    from warmup_tasks.serving.readiness import is_ready

    fleet = present_fleet(site)
    chosen = [fleet.replica(name).name for name in replicas]
    if not chosen and not is_surge:
        with connect(site.redis_url) as redis:
            chosen = [one.name for one in fleet.replicas if not is_ready(redis, one.model, one.name).is_ready]
    return {"joined": [] if is_surge else chosen, "surged": chosen if is_surge else [], "outcomes": {}}


def joined_run(site: Site, replicas: Sequence[str], moment: datetime) -> Run:
    """Return the run that warms new lives: the newest night's demand, adapters and prefixes of these replicas alone."""
    asked = _asked(site, replicas, demand_of="newest")
    policy = RunPolicy(is_paced=True, twins_per_stratum=TWINS_PER_STRATUM, max_twins_per_replica=TWINS_PER_REPLICA)
    return nightly.begin(site.lake_uri, asked, {}, moment, policy)


def surged_run(site: Site, replicas: Sequence[str], moment: datetime) -> Run:
    """Return the run that answers a surge: what was asked for in ``warmup_window_s``, weighed by the fast heat."""
    from warmup_tasks.lake import Lake
    from warmup_tasks.tuning.published import effective_parameters

    asked = _asked(site, replicas)
    tuned, origins = effective_parameters(Lake(site.lake_uri), moment, {}, models=asked.models, for_plan=False)
    share = min(tuned.budget_share, SURGE_BUDGET_SHARE)
    parameters = tuned.model_copy(update={"budget_share": share, "heat_tau_slow_s": tuned.heat_tau_fast_s})
    policy = RunPolicy(is_paced=True, lookback_s=tuned.warmup_window_s, horizon_s=SURGE_HORIZON_S, holdout_share=0.0)
    return Run.of(asked, policy, parameters, default_as_of=moment, origins=origins)


def surge_demand(site: Site, run: Run) -> Summary:
    """Survey and work out what the surge asks for; where the log does not show it yet, what the last night expected."""
    summary = nightly.profile(site, run)
    if summary["requests"]:
        return summary
    asked = run.request.model_copy(update={"demand_of": "newest"})
    return nightly.profile(site, run.model_copy(update={"request": asked, "policy": RunPolicy(is_paced=True)}))


def _asked(site: Site, replicas: Sequence[str], **more: Any) -> RunRequest:
    fleet = present_fleet(site)
    models = sorted({fleet.replica(name).model for name in replicas})
    kinds = [ItemKind.ADAPTER, ItemKind.KV_PREFIX]
    return RunRequest(replicas=list(replicas), models=models, kinds=kinds, tuning_time_s=0, **more)


def _outcome(
    site: Site, redis: "redis_client.Redis", fleet: FleetFile, case: _Case, run_name: str, moment: datetime
) -> Outcome:
    from warmup_tasks.serving.epochs import EpochStore
    from warmup_tasks.serving.events import EventStream

    spec = next((one for one in fleet.replicas if one.name == case.replica), None)
    if spec is None:
        return Outcome.UNKNOWN_REPLICA
    event, published = case.event, EpochStore(redis).read(case.replica)
    if published is not None and published.epoch != event.epoch:
        return Outcome.EPOCH_PASSED  # a later event speaks of the present one; an unknown one may yet come back
    before = EventStream(redis).reaction(case.replica)
    if before is not None and before.run == run_name:
        return Outcome.FIRED
    if before is not None and set(case.ids) & set(before.event_ids):
        return Outcome.DOUBLED
    hindrance = _against_life(redis, spec) if case.is_life else _against_surge(redis, spec, event.time, moment)
    if hindrance is None and before is not None and moment - before.time < COOLDOWN and before.epoch == event.epoch:
        hindrance = Outcome.COOLING
    if hindrance is None and not _has_demand(site, spec.model, moment):
        hindrance = Outcome.NO_DEMAND
    return hindrance or Outcome.FIRED


def _against_life(redis: "redis_client.Redis", spec: ReplicaSpec) -> Outcome | None:
    from warmup_tasks.serving.readiness import is_ready

    return Outcome.READY if is_ready(redis, spec.model, spec.name).is_ready else None


def _against_surge(redis: "redis_client.Redis", spec: ReplicaSpec, since: datetime, moment: datetime) -> Outcome | None:
    from warmup_tasks.serving.lease import Leases
    from warmup_tasks.serving.replica_turns import lease_of

    if moment - since > STALE_AFTER:
        return Outcome.STALE
    return Outcome.UNDER_WAY if Leases(redis).holder(lease_of(spec.turn)) is not None else None


def _has_demand(site: Site, model: str, moment: datetime) -> bool:
    from warmup_tasks.demand.taken_over import newest_demand
    from warmup_tasks.lake import Lake

    return newest_demand(Lake(site.lake_uri), moment, [model], RunPolicy().lookback_s) is not None
