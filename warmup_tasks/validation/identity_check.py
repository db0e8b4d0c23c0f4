"""Is the replica what the fleet file says? Reported, observed, and its weights by a fingerprint (spec 1.3, 6.5a).

A hit proves nothing about *right*: weights that change in place leave old blocks that still hit. So the check stands
apart from residency, and a contradiction fails every item of the replica.
"""

from collections.abc import Sequence
from typing import NamedTuple

from warmup_tasks.engines.base import AdapterListing, Engine
from warmup_tasks.engines.canary import Answer, fingerprint
from warmup_tasks.engines.identity_evidence import (
    FieldEvidence,
    adapter_evidence,
    contradictions,
    seen_identity,
    table_of,
)
from warmup_tasks.engines.observation import chat_template_digest
from warmup_tasks.fleet_file import AdapterSpec, FleetFile, ReplicaSpec
from warmup_tasks.items import Fingerprint
from warmup_tasks.lake.fingerprints import adapter_subject, model_subject, read_fingerprints, remember
from warmup_tasks.lake.store import Lake
from warmup_tasks.validation.answers import compare
from warmup_tasks.validation.meter import Meter


class IdentityCheck(NamedTuple):
    """What was found: one sentence a contradiction, none when everything agrees, and the table behind it."""

    contradictions: list[str]
    fields: list[FieldEvidence]

    @property
    def is_ok(self) -> bool:
        """Whether nothing contradicts the declared identity."""
        return not self.contradictions


async def check_identity(
    engine: Engine,
    replica: ReplicaSpec,
    fleet: FleetFile,
    *,
    lake: Lake,
    run_id: str,
    epoch: str | None,
    unused_salt: str,
    meter: Meter,
    tolerance: float,
    deadline_s: float,
    is_after_warming: bool = False,
) -> IdentityCheck:
    """Compare what a replica reports and shows with the declaration and with what it showed before.

    The weights' fingerprint must be the one that was last seen at the same declared revision, or, where no revision is
    declared, in the same epoch. A first fingerprint, and one after a declared change, is remembered; but a replica that
    answers as before in the same epoch has not got what is declared anew.

    Args:
        engine: the replica.
        replica: its entry in the fleet.
        fleet: the declared fleet.
        lake: keeps fingerprints across runs.
        run_id: goes into the record.
        epoch: the published one, None where unknown.
        unused_salt: for the canary, which must not be answered from cached blocks.
        meter: counts the canary's cost.
        tolerance: of log-probabilities, in nats.
        deadline_s: for each call.
        is_after_warming: the weights must have been seen before: a first fingerprint says nothing of the blocks that
            others may have computed.
    """
    declared = fleet.identity(replica.model)
    report = await engine.report(deadline_s=deadline_s)
    capabilities = await engine.capabilities(deadline_s=deadline_s)
    template_digest = await chat_template_digest(engine, replica.model, deadline_s=deadline_s)
    answer, generation = await fingerprint(engine, replica.model, unused_salt, deadline_s=deadline_s)
    meter.count(generation.prompt_tokens, generation.cached_tokens)
    subject = model_subject(replica.model)
    seen = Fingerprint(
        replica=replica.name,
        subject=subject,
        version=declared.weights_revision.declared,
        path=None,
        content_sha256=None,
        tokens=list(answer.tokens),
        logprobs=list(answer.logprobs),
        epoch=epoch,
        run_id=run_id,
    )
    known = read_fingerprints(lake, replica.name).get(subject)
    is_other = known is not None and _must_agree(known, seen) and not _agrees(known, answer, tolerance)
    identity = seen_identity(declared, report, template_digest, weights_observed=bool(answer.tokens) and not is_other)
    found = contradictions(identity, capabilities)
    if known is not None and is_other:
        found.append(
            f"weights_revision: {seen.version or 'undeclared'} answers the canary not as in run {known.run_id}: "
            "declare the new revision"
        )
    elif known is not None and _is_same_process(known, seen) and _agrees(known, answer, tolerance):
        found.append(
            f"weights_revision: declared {seen.version}, but the process that answered the canary as {known.version} "
            "still does: deploy the new revision"
        )
    elif answer.tokens and (known is None or not _must_agree(known, seen)):
        if is_after_warming:
            found.append("weights_revision: nobody saw what the canary answered before warming")
        else:
            remember(lake, seen)
    elif known is not None and epoch is not None and known.epoch != epoch and not is_after_warming:
        remember(lake, known.model_copy(update={"epoch": epoch, "run_id": run_id}))
    return IdentityCheck(found, table_of(identity, capabilities))


async def check_adapter(
    engine: Engine,
    replica: str,
    spec: AdapterSpec,
    weights_revision: str | None,
    listed: Sequence[AdapterListing],
    *,
    lake: Lake,
    unused_salt: str,
    meter: Meter,
    tolerance: float,
    deadline_s: float,
) -> FieldEvidence:
    """Let an adapter answer the canary and compare with what it answered when it was warmed at that version and path.

    Another answer means other weights behind the same name and path, as after a reload in place: old blocks still hit.

    Args:
        engine: the replica.
        replica: its name.
        spec: the adapter as declared.
        weights_revision: of the base model, as declared.
        listed: what the engine lists.
        lake: holds the fingerprint that warming took.
        unused_salt: for the canary, which must not be answered from cached blocks.
        meter: counts the canary's cost.
        tolerance: of log-probabilities, in nats.
        deadline_s: for the canary.

    Raises:
        RejectItemError: the engine cannot use the adapter.
        RetryLaterError: it does not answer.
    """
    answer, generation = await fingerprint(engine, spec.name, unused_salt, deadline_s=deadline_s)
    meter.count(generation.prompt_tokens, generation.cached_tokens)
    known = read_fingerprints(lake, replica).get(adapter_subject(spec.name, weights_revision))
    is_comparable = (
        known is not None and bool(known.tokens) and (known.version, known.path) == (spec.version, spec.path)
    )
    is_proved = None
    if answer.tokens:
        is_proved = known is None or not is_comparable or _agrees(known, answer, tolerance)
    return adapter_evidence(spec, listed, is_proved=is_proved)


def _must_agree(known: Fingerprint, seen: Fingerprint) -> bool:
    if seen.version is not None or known.version is not None:
        return known.version == seen.version
    return known.epoch is not None and known.epoch == seen.epoch


def _is_same_process(known: Fingerprint, seen: Fingerprint) -> bool:
    """Say whether another revision is declared of a replica that has not begun a new life since."""
    return known.version != seen.version and None not in (known.epoch, seen.epoch) and known.epoch == seen.epoch


def _agrees(known: Fingerprint, answer: Answer, tolerance: float) -> bool:
    return compare(Answer(tuple(known.tokens), tuple(known.logprobs)), answer, tolerance).is_equal is not False
