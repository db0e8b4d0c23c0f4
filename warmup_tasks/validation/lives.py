"""How long a mark may live: the shortest of what policy, kind, value and the cache's turnover allow. Pure."""

from collections.abc import Mapping
from datetime import datetime, timedelta

from warmup_tasks.items import KINDS, Evidence, Receipt


def mark_end(
    evidence: Evidence,
    receipt: Receipt,
    now: datetime,
    *,
    mark_life_s: int,
    half_turnover_s: Mapping[str, float | None],
    looked_from: Mapping[str, datetime],
) -> datetime:
    """Return when a mark ends.

    Args:
        evidence: of the item.
        receipt: of the item; a value in the store began its life when it was written.
        now: by the wall clock.
        mark_life_s: upper limit of the policy.
        half_turnover_s: replica → time in which half of its cache is written anew (spec 1.2), None where it is not.
        looked_from: replica → when its items were looked at; the turnover counts from there, not from ``now``.
    """
    ends = [now + timedelta(seconds=mark_life_s)]
    ttl_s = KINDS[evidence.kind].ttl_s
    if ttl_s is not None:
        ends.append(receipt.started_at + timedelta(seconds=ttl_s))
    replica = evidence.replica or ""
    turnover_s = half_turnover_s.get(replica)
    if turnover_s is not None:
        ends.append(looked_from.get(replica, now) + timedelta(seconds=turnover_s))
    return min(ends)
