"""Ready or not, item by item: the order in which the facts about one item are weighed (spec 6.5). Pure."""

from dataclasses import dataclass

from warmup_tasks.items import Outcome, Reason, Receipt, Residency


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of one item. ``epoch_before`` and ``epoch_after`` frame all looks at its replica.

    ``refusal`` is why a look brought nothing, "" where it did. ``are_salts_kept`` False: some control on the replica
    hit; None: no control told anything. ``is_identity_verified`` False: a field that the policy requires is unverified.
    """

    receipt: Receipt | None
    is_on_replica: bool
    is_identity_ok: bool
    epoch_before: str | None
    epoch_after: str | None
    residency: Residency
    refusal: str = ""
    are_salts_kept: bool | None = None
    is_answer_equal: bool | None = None
    is_identity_verified: bool = True


def reason_against(facts: Facts) -> str:
    """Return why an item is not ready, "" when nothing speaks against it.

    What happened in warming comes first, then identity, epoch, residency, salts and answer: a hit of the wrong state is
    worth nothing, so it is asked about last.
    """
    if facts.receipt is None:
        return Reason.ENGINE_UNAVAILABLE
    if facts.receipt.outcome is not Outcome.WARMED:
        return facts.receipt.reason
    if not facts.is_identity_ok:
        return Reason.IDENTITY_CONTRADICTED
    if not facts.is_identity_verified:
        return Reason.IDENTITY_UNVERIFIED
    if facts.is_on_replica and (changed := _epoch_against(facts, facts.receipt)):
        return changed
    if facts.refusal:
        return facts.refusal
    if facts.residency is not Residency.HIT:
        return Reason.RESIDENCY_MISS if facts.residency is Residency.MISS else Reason.RESIDENCY_UNVERIFIED
    if facts.are_salts_kept is False:
        return Reason.CONTROL_HIT
    return Reason.ANSWER_DIFFERS if facts.is_answer_equal is False else ""


def _epoch_against(facts: Facts, receipt: Receipt) -> str:
    epochs = {receipt.replica_epoch, facts.epoch_before, facts.epoch_after}
    if len(epochs - {None}) > 1:
        return Reason.EPOCH_CHANGED
    return Reason.EPOCH_UNKNOWN if None in epochs else ""
