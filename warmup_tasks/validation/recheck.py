"""The re-check shortly before the peak: marks on replicas are renewed where they still hold, else voided (spec 1.2).

Marks name their run, whose plan holds what must be asked. A replica's identity and adapters are checked as a whole; its
prefixes are asked for as probes do, hottest first, up to a limit. What is not asked for, or while the epoch is unknown,
keeps its mark as it stands.
Nothing is warmed here: what is found missing has been warmed by the very question, but was not ready when it mattered.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

import redis as redis_client

from warmup_tasks.engines.base import Engine
from warmup_tasks.errors import ContractError
from warmup_tasks.fleet_file import FleetFile, ReplicaSpec
from warmup_tasks.items import ItemKind, Mark, PlanRow, Reason, Residency
from warmup_tasks.lake.records import key_of, read_plan
from warmup_tasks.lake.store import Lake
from warmup_tasks.runs import Run
from warmup_tasks.serving.epochs import EpochStore
from warmup_tasks.serving.invalidate import Invalidator
from warmup_tasks.serving.marks import MarkAddress, MarkStore
from warmup_tasks.serving.namespaces import Reach
from warmup_tasks.serving.readiness import ReadinessRecord, ReadinessStore
from warmup_tasks.serving.replica_turns import ReplicaTurns
from warmup_tasks.settings import RunPolicy, RunRequest
from warmup_tasks.validation.looks import Finding, ReplicaFindings
from warmup_tasks.validation.night import Night, is_prefix
from warmup_tasks.validation.replica_probes import ReplicaProbe
from warmup_tasks.validation.turns import in_turn

NO_PLAN = "the plan behind the mark is gone"
NOT_ASKED = "not asked for"
_KEPT = (NOT_ASKED, Reason.EPOCH_UNKNOWN)


async def recheck(
    lake: Lake,
    fleet: FleetFile,
    *,
    open_engine: Callable[[ReplicaSpec], Engine],
    redis: redis_client.Redis,
    now: Callable[[], datetime],
    policy: RunPolicy | None = None,
    max_prefixes: int | None = None,
    replicas: Sequence[str] = (),
) -> dict[str, dict[str, Any]]:
    """Look again at what marks say of replicas, renew what holds, void the rest, and count readiness anew.

    Args:
        lake: holds the plans that the marks come from, and fingerprints.
        fleet: the fleet file.
        open_engine: opens a replica.
        redis: the serving store.
        now: the wall clock.
        policy: limits and tolerances; None takes the defaults.
        max_prefixes: ask for at most so many prefixes a replica, hottest first; None asks for all.
        replicas: only these; empty means all.

    Returns:
        Replica → ``renewed``, ``voided``, ``kept`` (not asked for), ``reasons`` (of what was voided), ``is_ready``.

    Raises:
        RetryLaterError: Redis does not answer, or others work on a replica for too long.
    """
    chosen = [replica for replica in fleet.replicas if not replicas or replica.name in replicas]
    rules = policy or RunPolicy()
    turns = ReplicaTurns(redis, "recheck", wait_s=rules.turn_wait_s)

    async def one(replica: ReplicaSpec) -> dict[str, Any]:
        async with turns.on(replica.turn):
            return await _Recheck(lake, fleet, replica, redis, now, rules, max_prefixes).run(open_engine)

    return {replica.name: seen for replica, seen in zip(chosen, await in_turn(chosen, one), strict=True)}


class _Recheck:
    """One replica, looked at again."""

    def __init__(
        self,
        lake: Lake,
        fleet: FleetFile,
        replica: ReplicaSpec,
        redis: redis_client.Redis,
        now: Callable[[], datetime],
        policy: RunPolicy,
        max_prefixes: int | None,
    ) -> None:
        self._lake, self._fleet, self._replica, self._policy = lake, fleet, replica, policy
        self._redis, self._now, self._max_prefixes = redis, now, max_prefixes
        self._marks, self._epochs = MarkStore(redis), EpochStore(redis)
        self._reasons: dict[MarkAddress, str] = {}
        self._renewed: list[Mark] = []

    async def run(self, open_engine: Callable[[ReplicaSpec], Engine]) -> dict[str, Any]:
        """Look, then void, then renew, and say what came of it."""
        marks = list(self._marks.find(Reach(replica=self._replica.name)))
        published = self._epochs.read(self._replica.name)
        by_run: dict[str, list[Mark]] = defaultdict(list)
        for mark in marks:
            if published is not None and mark.epoch != published.epoch:
                self._reasons[MarkAddress.of(mark)] = Reason.EPOCH_CHANGED
            else:
                by_run[mark.run_id].append(mark)
        for run_id, every in sorted(by_run.items()):
            await self._of_run(run_id, every, open_engine)
        return self._settle(marks)

    async def _of_run(self, run_id: str, marks: list[Mark], open_engine: Callable[[ReplicaSpec], Engine]) -> None:
        night = self._night(run_id, marks[0].as_of)
        planned = {} if night is None else {key_of(row): row for row in night.planned}
        rows = [row for mark in marks if (row := planned.get((mark.item_id, mark.replica))) is not None]
        asked = self._hottest(rows)
        if night is None:
            for mark in marks:
                self._reasons[MarkAddress.of(mark)] = NO_PLAN
            return
        seen = await ReplicaProbe(night, self._replica, asked, self._epochs, self._now).run(open_engine)
        for mark in marks:
            row = planned.get((mark.item_id, mark.replica))
            reason = NO_PLAN if row is None else self._against(mark, row, seen, night.run.policy)
            self._reasons[MarkAddress.of(mark)] = reason
            if reason == "":
                self._renewed.append(mark.model_copy(update={"expires_at": self._end(seen)}))

    def _night(self, run_id: str, as_of: datetime) -> Night | None:
        """Return the run as its plan holds it, without twins: nothing is compared but what must still hit."""
        try:
            plan = read_plan(self._lake, run_id, {"replica": [self._replica.name]}, without=("body_json",))
        except ContractError:
            return None
        run = Run.of(RunRequest(as_of=as_of), self._policy).model_copy(update={"run_id": run_id})
        profile = self._replica.profile
        return Night(self._lake, run, self._fleet, profile, plan, sample=set(), receipts={}, twins={})

    def _hottest(self, rows: Iterable[PlanRow]) -> list[PlanRow]:
        by_heat = sorted(rows, key=lambda row: (is_prefix(row), -row.order))
        others = [row for row in by_heat if not is_prefix(row)]
        prefixes = [row for row in by_heat if is_prefix(row)]
        return others + prefixes[: self._max_prefixes]

    def _against(self, mark: Mark, row: PlanRow, seen: ReplicaFindings, policy: RunPolicy) -> str:
        """Return why a mark is no longer true, "" where it was seen to be, ``not asked for`` where nothing speaks."""
        if seen.epoch_before is None or seen.epoch_before != seen.epoch_after or seen.epoch_after != mark.epoch:
            return Reason.EPOCH_UNKNOWN if None in (seen.epoch_before, seen.epoch_after) else Reason.EPOCH_CHANGED
        if seen.contradictions:
            return Reason.IDENTITY_CONTRADICTED
        if refused := seen.refused_adapters.get(row.adapter or "", ""):
            return refused
        if missing := seen.missing(
            [name for name in policy.required_evidence if row.adapter or name != "adapter_version"]
        ):
            return f"{Reason.IDENTITY_UNVERIFIED}: {', '.join(missing)}"
        finding = seen.findings.get(key_of(row), Finding(refusal=NOT_ASKED))
        if finding.refusal or finding.residency is Residency.HIT:
            return finding.refusal
        return Reason.RESIDENCY_MISS if finding.residency is Residency.MISS else Reason.RESIDENCY_UNVERIFIED

    def _end(self, seen: ReplicaFindings) -> datetime:
        life_s = float(self._policy.mark_life_s)
        if seen.half_turnover_s is not None:
            life_s = min(life_s, seen.half_turnover_s)
        return self._now() + timedelta(seconds=life_s)

    def _settle(self, marks: Sequence[Mark]) -> dict[str, Any]:
        """Void first, readiness and then marks; then renew, and count what stands."""
        moment = self._now()
        readiness = ReadinessStore(self._redis)
        record = readiness.read(self._replica.model, self._replica.name)
        lost = {address: reason for address, reason in self._reasons.items() if reason not in ("", *_KEPT)}
        if lost:
            readiness.void(self._replica.model, self._replica.name)
        self._marks.void_many(lost)
        for identity_digest in self._stale_adapters(marks, lost):
            Invalidator(self._redis).invalidate(Reach(identity_digest=identity_digest), now=moment)
        renewed = self._marks.renew_many(self._renewed, moment)
        is_ready = self._count(record, readiness, marks, moment)
        return {
            "renewed": renewed,
            "voided": len(lost),
            "kept": sum(reason in _KEPT for reason in self._reasons.values()),
            "reasons": dict(Counter(str(reason) for reason in lost.values())),
            "is_ready": is_ready,
        }

    @staticmethod
    def _stale_adapters(marks: Sequence[Mark], lost: dict[MarkAddress, str]) -> list[str]:
        """Return the identities of adapters that answer otherwise: what they generated is as wrong as their blocks."""
        stale = {
            mark.identity_digest
            for mark in marks
            if mark.kind is ItemKind.ADAPTER and lost.get(MarkAddress.of(mark)) == Reason.ADAPTER_STALE_PATH
        }
        return sorted(stale)

    def _count(
        self, record: ReadinessRecord | None, readiness: ReadinessStore, marks: Sequence[Mark], moment: datetime
    ) -> bool:
        """Write the readiness of what stands now, as the run that is recorded planned it."""
        published = self._epochs.read(self._replica.name)
        if record is None or published is None:
            return False
        addresses = [MarkAddress.of(mark) for mark in marks if mark.run_id == record.run_id]
        standing = [m for m in self._marks.get_many(addresses) if m is not None and m.epoch == published.epoch]
        if not standing:
            readiness.void(record.model, record.replica)
            return False
        ends = sorted((mark.expires_at for mark in standing), reverse=True)
        needed = min(max(1, round(record.min_share * record.planned + 0.499)), len(standing))
        counted = record.counted(len(standing))
        update = {"epoch": published.epoch, "expires_at": ends[needed - 1]}
        readiness.put(counted.model_copy(update=update), moment)
        return counted.is_ready
