"""The steps of a release beside those of a night: void, judge the canary, take back, settle (spec 1.2, 2.2).

What is void falls before anything new is made, replica by replica: marks of the old identity stand on every replica
that the release has not reached, so that a release which ends at its canary leaves them as they are. Values of the old
identity fall at the very end, once the fleet file says the new version.
"""

from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from warmup_tasks.errors import ConfigurationError, ContractError, GiveUpError
from warmup_tasks.fleet_file import FleetFile
from warmup_tasks.fleets import declared_fleet, present_fleet
from warmup_tasks.identity import EmbedderIdentity
from warmup_tasks.releases import Change, Changed, Release
from warmup_tasks.runs import Run
from warmup_tasks.settings import Site

if TYPE_CHECKING:
    import redis as redis_client

    from warmup_tasks.serving.namespaces import Namespace, Reach

Summary = dict[str, Any]
_MOST_REASONS = 5


class Part(StrEnum):
    """The two parts of a release, one run each."""

    CANARY = "canary"
    REST = "rest"


def run_of(site: Site, run: Run, release: Release, part: Part) -> Run | None:
    """Return the run of one part, or None where that part has no replica.

    Args:
        site: the site.
        run: what was asked for; its filters hold within what the release reaches.
        release: the changes.
        part: canary or rest.

    Raises:
        ConfigurationError: the fleet file does not list what is replaced, or the canary does not serve it.
    """
    fleet, asked = present_fleet(site), run.request
    release.declared(fleet)  # refuses what the fleet file does not list
    canary = release.canary(fleet)
    reached = [name for name in release.replicas(fleet) if not asked.replicas or name in asked.replicas]
    chosen = [name for name in reached if (name == canary) is (part is Part.CANARY)]
    if not chosen:
        return None
    models = [model for model in release.models(fleet) if not asked.models or model in asked.models] or asked.models
    wishes = asked.model_copy(update={"replicas": chosen, "models": models})
    return run.model_copy(update={"request": wishes}).in_release(release)


def void(site: Site, run: Run) -> Summary:
    """Void what the release makes wrong on the run's replicas, or in a dry run only say what would fall.

    An embedder's or a lexicon's successor reaches no replica: its embeddings, and the answers chosen with them, fall.
    """
    from warmup_tasks.serving.namespaces import Reach

    replicas = run.request.replicas

    def reaches(old: str, embedder: Reach | None) -> list[Reach]:
        return [embedder] if embedder else [Reach(identity_digest=old, replica=name) for name in replicas]

    return _invalidate(site, run, reaches)


def judge(site: Site, run: Run) -> Summary:
    """Judge the canary by the evidence of its run: published, ready, of the identity that is declared.

    Raises:
        GiveUpError: it is not good enough for the others to follow; the message says why.
    """
    from warmup_tasks.lake import Lake
    from warmup_tasks.serving import connect
    from warmup_tasks.serving.readiness import is_ready

    if run.request.dry_run:
        return {"verdict": "a dry run proves nothing", "canary": run.request.replicas}
    lake, fleet = Lake(site.lake_uri), declared_fleet(site, run)
    meta, against = lake.meta(f"marks/{run.run_id}"), list[str]()
    if not meta["is_published"]:
        against.append(f"its run published nothing: {meta['failure_share']:.0%} of the items failed")
    with connect(site.redis_url) as redis:
        for name in run.request.replicas:
            model = fleet.replica(name).model
            verdict = is_ready(redis, model, name, identity_digest=fleet.identity(model).digest())
            against += [] if verdict.is_ready else [f"{name} is not ready: {verdict.reason}"]
    if against:
        told = Counter(lake.read(f"marks/{run.run_id}", "quarantine", ["reason"])["reason"].to_pylist())
        why = "; ".join(f"{reason} ({n})" for reason, n in told.most_common(_MOST_REASONS))
        raise GiveUpError(f"the canary is not good enough: {'; '.join(against)}{'. Reasons: ' + why if why else ''}")
    return {"verdict": "good", "canary": run.request.replicas, "failure_share": meta["failure_share"]}


def take_back(site: Site, run: Run) -> Summary:
    """Void the marks that a canary's run published, and return what of the old identities is still true, by replica."""
    from warmup_tasks.serving import connect
    from warmup_tasks.serving.epochs import EpochStore
    from warmup_tasks.serving.marks import MarkAddress, MarkStore
    from warmup_tasks.serving.namespaces import Reach
    from warmup_tasks.serving.readiness import ReadinessStore, mark_verdict

    fleet, release, now = present_fleet(site), _release(run), datetime.now(UTC)
    with connect(site.redis_url) as redis:
        marks, readiness = MarkStore(redis), ReadinessStore(redis)
        for name in run.request.replicas:
            record = readiness.read(fleet.replica(name).model, name)
            if record is not None and record.run_id == run.run_id:
                readiness.void(record.model, name)
        new = [Reach(identity_digest=digest) for digest in _present(release.declared(fleet))]
        fallen = [MarkAddress.of(mark) for reach in new for mark in marks.find(reach) if mark.run_id == run.run_id]
        voided, epochs = marks.void_many(fallen), EpochStore(redis)
        standing = Counter[str]()
        for digest in _old(redis, release, release.declared(fleet)):
            for mark in marks.find(Reach(identity_digest=digest)):
                published = epochs.read(mark.replica) if mark.replica else None
                standing[mark.replica or "serving store"] += mark_verdict(mark, now, published).is_ready
    return {"marks_voided": voided, "still_true": dict(sorted(standing.items()))}


def settle(site: Site, run: Run) -> Summary:
    """Drop what is left of the old identities; nobody reads it any more.

    Args:
        site: the site.
        run: as it was asked for, both parts together.

    Raises:
        ConfigurationError: the fleet file still says the old version, by which readers and the next night go.
    """
    from warmup_tasks.serving.namespaces import Reach

    fleet, release, asked = present_fleet(site), _release(run), run.request
    if release.declared(fleet) != fleet and not asked.dry_run:
        said = ", ".join(" ".join((c.what, *filter(None, (c.name, c.version)))) for c in release.changes)
        raise ConfigurationError(
            f"the replicas are warm for what comes; write it into the fleet file ({said}), then clear this task: until "
            "then readers and the next night go by the old version"
        )
    left_out = [name for name in release.replicas(fleet) if asked.replicas and name not in asked.replicas]
    if left_out:
        return {"is_dropped": False, "why": f"these were left out and may serve the old version: {', '.join(left_out)}"}
    found = _invalidate(site, run, lambda old, embedder: [embedder or Reach(identity_digest=old)])
    return {"is_dropped": not asked.dry_run, **found}


def _invalidate(site: Site, run: Run, reaches: "Callable[[str, Reach | None], list[Reach]]") -> Summary:
    """Invalidate what ``reaches`` makes of each old identity (its digest, and its reach where it is an embedder)."""
    from warmup_tasks.serving import connect
    from warmup_tasks.serving.invalidate import Invalidator

    release, is_dry_run = _release(run), run.request.dry_run
    fallen, values = Counter[str](), Counter[str]()
    with connect(site.redis_url) as redis:
        events = Invalidator(redis)
        old = _old(redis, release, declared_fleet(site, run))
        for digest, embedder in old.items():
            for reach in reaches(digest, embedder):
                impact = events.preview(reach) if is_dry_run else events.invalidate(reach)
                fallen.update(marks=impact.marks, readiness=impact.readiness)
                values.update(impact.values)
    return {"is_dry_run": is_dry_run, "old_identities": len(old), **fallen, "values": dict(values)}


def _old(redis: "redis_client.Redis", release: Release, fleet: FleetFile) -> "dict[str, Reach | None]":
    """Return the identities that a release replaces, as Redis knows them; with their reach where one is an embedder."""
    from warmup_tasks.serving.identities import IdentityBook
    from warmup_tasks.serving.namespaces import NamespaceIndex, Reach

    present, found = _present(fleet), dict[str, Reach | None]()
    for where in NamespaceIndex(redis).namespaces():
        if where.identity_digest not in present and any(_replaces(change, where, fleet) for change in release.changes):
            known = IdentityBook(redis).recall_embedder(where.identity_digest) if where.embedder else None
            found[where.identity_digest] = None if known is None else _embedders_reach(known)
    return found


def _embedders_reach(known: EmbedderIdentity) -> "Reach":
    from warmup_tasks.serving.namespaces import Reach

    return Reach(embedder=known.embedder, embedder_revision=known.revision, lexicon_version=known.lexicon_version)


def _replaces(change: Change, where: "Namespace", fleet: FleetFile) -> bool:
    match change.what:
        case Changed.MODEL:
            return where.model == change.model_of(fleet)
        case Changed.ADAPTER:
            return where.adapter == change.name
        case Changed.EMBEDDER | Changed.LEXICON:
            return where.embedder is not None


def _present(fleet: FleetFile) -> set[str]:
    """Return the digests of all identities that a fleet declares."""
    adapters = {fleet.identity(adapter.base_model, adapter.name).digest() for adapter in fleet.adapters}
    return {fleet.embedder.digest(), *(fleet.identity(model.name).digest() for model in fleet.models), *adapters}


def _release(run: Run) -> Release:
    if run.release is None:
        raise ContractError(f"run {run.run_id} is no release")
    return run.release
