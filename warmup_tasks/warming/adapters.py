"""Warming adapters: load, see the listing, prove by a canary; and never serve new weights from old blocks (spec 1.2).

The engine's cache tells adapters apart by name and path, not by weights. Where other weights lie under a path that this
replica has already served, the cache is emptied and seen to be empty, or the adapter is refused.
"""

import asyncio
from collections.abc import Sequence

from warmup_tasks.engines.attempts import attempt, scrape
from warmup_tasks.engines.base import Engine
from warmup_tasks.engines.canary import Answer, fingerprint, touch, unused_label
from warmup_tasks.errors import RejectItemError, RetryLaterError
from warmup_tasks.fleet_file import AdapterSpec
from warmup_tasks.identity import digest
from warmup_tasks.items import Fingerprint, Outcome, PlanRow, Reason
from warmup_tasks.lake.fingerprints import adapter_subject, read_fingerprints, remember
from warmup_tasks.lake.records import Key
from warmup_tasks.serving.epochs import MAX_TTL_S, EpochStore
from warmup_tasks.serving.store import ValueStore
from warmup_tasks.serving.values import AdapterValue
from warmup_tasks.warming.weights import weights_digest
from warmup_tasks.warming.work import Attempt, Work

_POLL_S = 0.1


async def warm_adapters(work: Work, rows: Sequence[PlanRow]) -> dict[Key, Attempt]:
    """Load each adapter on its replica, one after another, and enter the good ones into the registry.

    Raises:
        RetryLaterError: a replica does not answer at all, or others work on it for too long.
    """
    attempts: dict[Key, Attempt] = {}
    for row in rows:
        replica = row.replica or ""
        async with work.turn_on(replica):
            engine = await work.engine(replica)
            await scrape(engine, deadline_s=work.deadline_s)
            attempts[row.item_id, row.replica] = await _warm(work, engine, row, replica)
    _enter(work, [row for row in rows if attempts[row.item_id, row.replica].outcome is Outcome.WARMED])
    return attempts


async def ensure_resident(work: Work, engine: Engine, adapter: str, replica: str) -> str | None:
    """Prove that an adapter is still there before its prefixes are warmed; return why not, or None.

    An adapter that is gone is loaded again when the replica lost its state since the adapter wave; one that somebody
    took away on purpose stays away.
    """
    spec = work.fleet.adapter(adapter)
    if spec is None:
        return Reason.ADAPTER_UNKNOWN
    try:
        listed = await attempt(lambda left_s: engine.adapters(deadline_s=left_s), deadline_s=work.deadline_s)
        roots = {listing.name: listing.root for listing in listed}
        if adapter in roots and roots[adapter] != spec.path:
            return Reason.ADAPTER_PATH_DIFFERS
        if adapter not in roots:
            if not _lost_state(work, adapter, replica):
                return Reason.DEPENDENCY_FAILED
            await _load(work, engine, spec)
        await _prove(work, engine, adapter)
    except RejectItemError as error:
        return error.reason
    except RetryLaterError:
        return Reason.ENGINE_UNAVAILABLE
    return None


async def _warm(work: Work, engine: Engine, row: PlanRow, replica: str) -> Attempt:
    started_at = work.now()
    spec = work.fleet.adapter(row.adapter or "")
    if spec is None:
        return work.stopped(Outcome.REJECTED, Reason.ADAPTER_UNKNOWN, started_at)
    try:
        weights = await asyncio.to_thread(weights_digest, spec.path)
        is_stale = _is_stale(work, spec, weights, replica)
        if is_stale:
            await _empty(work, engine, spec, replica)
        await _load(work, engine, spec)
        cached = await _prove(work, engine, spec.name)
        if is_stale and cached:
            return work.stopped(Outcome.REJECTED, Reason.ADAPTER_STALE_PATH, started_at)
        seen = await _fingerprint(work, engine, spec, weights, replica)
    except RejectItemError as error:
        return work.stopped(Outcome.REJECTED, error.reason, started_at)
    except RetryLaterError:
        return work.stopped(Outcome.FAILED, Reason.ENGINE_UNAVAILABLE, started_at)
    remember(work.lake, seen)
    reason = "" if seen.epoch else Reason.EPOCH_UNKNOWN
    return Attempt(Outcome.WARMED, started_at, work.now(), reason, seen.epoch, computed_tokens=0)


def _is_stale(work: Work, spec: AdapterSpec, weights: str | None, replica: str) -> bool:
    """Say whether this replica's cache may hold blocks of other weights under the adapter's name and path."""
    seen = read_fingerprints(work.lake, replica).get(_subject(work, spec))
    if seen is None or seen.path != spec.path:
        return False
    epoch = work.epoch(replica)
    if seen.epoch is not None and epoch is not None and seen.epoch != epoch:
        return False
    has_other_weights = None not in (seen.content_sha256, weights) and seen.content_sha256 != weights
    return has_other_weights or seen.version != spec.version


async def _empty(work: Work, engine: Engine, spec: AdapterSpec, replica: str) -> None:
    """Drop the old weights and every block made with them; wait, for as long as an epoch lives, for the new epoch.

    The epoch ends before the cache is touched, so that nothing is called ready that is going; and once more afterwards,
    for what others proved in between.

    Raises:
        RejectItemError: the engine did not empty its cache.
    """
    epochs = EpochStore(work.redis)
    epochs.begin_generation(replica)
    await engine.unload_adapter(spec.name, deadline_s=work.deadline_s)
    if not await engine.reset_prefix_cache(deadline_s=work.deadline_s):
        raise RejectItemError(
            Reason.ADAPTER_STALE_PATH,
            f"{spec.name} on {replica}: give the new version a new path, or restart the replica",
        )
    epochs.begin_generation(replica)
    for _ in range(round(MAX_TTL_S / _POLL_S)):
        if work.epoch(replica) is not None:
            break
        await asyncio.sleep(_POLL_S)


async def _load(work: Work, engine: Engine, spec: AdapterSpec) -> None:
    """Load an adapter and see that the engine lists it under the path and base model that the fleet declares."""
    await attempt(
        lambda left_s: engine.load_adapter(spec.name, spec.path, deadline_s=left_s), deadline_s=work.deadline_s
    )
    listed = {adapter.name: adapter for adapter in await engine.adapters(deadline_s=work.deadline_s)}
    found = listed.get(spec.name)
    if found is None or found.root != spec.path:
        seen = None if found is None else found.root
        raise RejectItemError(Reason.ADAPTER_PATH_DIFFERS, f"{spec.name}: declared {spec.path!r}, listed {seen!r}")


async def _prove(work: Work, engine: Engine, adapter: str) -> int | None:
    """Generate one token under the adapter and return the canary's cached tokens; listing alone proves nothing."""
    return (await touch(engine, adapter, deadline_s=work.deadline_s)).cached_tokens


def _lost_state(work: Work, adapter: str, replica: str) -> bool:
    loaded = [
        receipt
        for receipt in work.earlier.values()
        if receipt.adapter == adapter and receipt.replica == replica and receipt.outcome is Outcome.WARMED
    ]
    epoch = work.epoch(replica)
    return any(receipt.replica_epoch is None or receipt.replica_epoch != epoch for receipt in loaded)


async def _fingerprint(work: Work, engine: Engine, spec: AdapterSpec, weights: str | None, replica: str) -> Fingerprint:
    """Return what is seen of an adapter: its files and its answer to the canary.

    The answer that was first seen of this version, path and content stays: validation compares with it, so a silent
    change cannot make itself the measure. Where no revision of the base model is declared, it stays for an epoch:
    with other base weights an adapter answers otherwise.
    """
    known = read_fingerprints(work.lake, replica).get(_subject(work, spec))
    answer = None
    is_known = known is not None and (known.version, known.path) == (spec.version, spec.path)
    if known is not None and is_known and known.tokens and _has_same_base(work, spec, known, replica):
        is_same = weights is None or known.content_sha256 in (None, weights)
        answer = Answer(tuple(known.tokens), tuple(known.logprobs)) if is_same else None
    if answer is None:
        label = unused_label(await scrape(engine, deadline_s=work.deadline_s))
        salt = digest([label, "fingerprint", spec.name])
        answer, _ = await fingerprint(engine, spec.name, salt, deadline_s=work.deadline_s)
    return Fingerprint(
        replica=replica,
        subject=_subject(work, spec),
        version=spec.version,
        path=spec.path,
        content_sha256=weights,
        tokens=list(answer.tokens),
        logprobs=list(answer.logprobs),
        epoch=work.epoch(replica),
        run_id=work.run.run_id,
    )


def _subject(work: Work, spec: AdapterSpec) -> str:
    return adapter_subject(spec.name, work.fleet.model(spec.base_model).weights_revision)


def _has_same_base(work: Work, spec: AdapterSpec, known: Fingerprint, replica: str) -> bool:
    is_declared = work.fleet.model(spec.base_model).weights_revision is not None
    return is_declared or (known.epoch is not None and known.epoch == work.epoch(replica))


def _enter(work: Work, rows: Sequence[PlanRow]) -> None:
    values = []
    for row in rows:
        spec = work.fleet.adapter(row.adapter or "")
        if spec is not None:
            values.append(
                AdapterValue(
                    item_id=row.item_id,
                    identity_digest=row.identity_digest,
                    created_at=work.now(),
                    model=row.model,
                    adapter=spec.name,
                    version=spec.version,
                    path=spec.path,
                    tenant=None,
                )
            )
    if values:
        ValueStore(work.redis).put_many(values, work.now(), deadline_s=work.deadline_s)
