"""Is the replica what the fleet file says? Reported, observed, and its weights by a fingerprint (spec 1.3, 6.5a).

A hit proves nothing about *right*: weights that change in place leave old blocks that still hit. So the check stands
apart from residency, and a contradiction fails every item of the replica.
"""

from typing import NamedTuple

from warmup_tasks.engines.base import Engine
from warmup_tasks.engines.canary import Answer, fingerprint
from warmup_tasks.engines.observation import chat_template_digest
from warmup_tasks.engines.survey import contradictions
from warmup_tasks.items import Fingerprint
from warmup_tasks.lake.fingerprints import model_subject, read_fingerprints, remember
from warmup_tasks.lake.store import Lake
from warmup_tasks.settings import FleetFile, ReplicaSpec
from warmup_tasks.validation.answers import compare
from warmup_tasks.validation.meter import Meter


class IdentityCheck(NamedTuple):
    """What was found: one sentence a contradiction, none when everything agrees."""

    contradictions: list[str]

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
) -> IdentityCheck:
    """Compare what a replica reports and shows with the declaration and with what it showed before.

    The weights' fingerprint must be the one that was last seen at the same declared revision, or, where no revision is
    declared, in the same epoch. A first fingerprint, and one after a declared change, is remembered.

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
    """
    declared = fleet.identity(replica.model)
    found = contradictions(
        declared,
        await engine.report(deadline_s=deadline_s),
        await engine.capabilities(deadline_s=deadline_s),
        await chat_template_digest(engine, replica.model, deadline_s=deadline_s),
    )
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
    if known is not None and _must_agree(known, seen) and not _agrees(known, answer, tolerance):
        found.append(
            f"weights_revision: {seen.version or 'undeclared'} answers the canary not as in run {known.run_id}: "
            "declare the new revision"
        )
    elif answer.tokens and (known is None or not _must_agree(known, seen)):
        remember(lake, seen)
    return IdentityCheck(found)


def _must_agree(known: Fingerprint, seen: Fingerprint) -> bool:
    if seen.version is not None or known.version is not None:
        return known.version == seen.version
    return known.epoch is not None and known.epoch == seen.epoch


def _agrees(known: Fingerprint, answer: Answer, tolerance: float) -> bool:
    return compare(Answer(tuple(known.tokens), tuple(known.logprobs)), answer, tolerance).is_equal is not False
