"""What is renewed between two nights: answers that feedback corrected, default responses, marks before the peak.

The steps are those of a night, with the newest night's demand; here stands which run asks for what, and whether there
is anything to do at all (spec 1.2).
"""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from warmup_tasks import nightly
from warmup_tasks.fleets import present_fleet
from warmup_tasks.items import ItemKind, item_id
from warmup_tasks.runs import Run
from warmup_tasks.settings import RunPolicy, RunRequest, Site

if TYPE_CHECKING:
    from warmup_tasks.lake import Lake
    from warmup_tasks.serving.marks import MarkAddress

Summary = dict[str, Any]
LOOK_EVERY = timedelta(minutes=15)
"""How often it is asked whether the peak is near."""


class _Pair(NamedTuple):
    """A pair that feedback corrected: where its mark stands, under which key its value, and what it must say."""

    address: "MarkAddress"
    key: str
    correction: str


def corrected_pairs(site: Site, moment: datetime) -> Run:
    """Return the run that renews QA pairs with adopted corrections, and nothing that an engine would have to answer."""
    return _begun(site, moment, kinds=[ItemKind.QA_PAIR], max_answers=0)


def default_responses(site: Site, moment: datetime) -> Run:
    """Return the run that renews default responses, which live for 12 hours, at a pace that spares live traffic."""
    return _begun(site, moment, kinds=[ItemKind.RESPONSE])


def read_on(site: Site, run: Run) -> Summary:
    """Read what came into the site's log since; a site without a log has nothing to read."""
    return nightly.extract(site, run) if site.default_log else {}


def void_outdated(site: Site, run: Run) -> Summary:
    """Void the marks of pairs whose stored answer is not the adopted correction, before anything is written.

    A pair is due as well where the correction is stored and its mark is missing: an earlier run did not come to its
    end. What is not stored at all is the next night's matter.

    Returns:
        ``due``: how many pairs there are to renew; ``voided``: how many marks fell.

    Raises:
        RetryLaterError: Redis does not answer.
    """
    from warmup_tasks.errors import ContractError
    from warmup_tasks.lake import Lake
    from warmup_tasks.serving import connect
    from warmup_tasks.serving.marks import MarkStore
    from warmup_tasks.serving.store import ValueStore
    from warmup_tasks.serving.values import QaValue

    due = []
    with connect(site.redis_url) as redis:
        values, marks = ValueStore(redis), MarkStore(redis)
        for pair in _corrected(site, Lake(site.lake_uri), run):
            try:
                stored = values.get(pair.key)
            except ContractError:
                continue
            if not isinstance(stored, QaValue):
                continue
            if stored.answer != pair.correction or marks.get(pair.address) is None:
                due.append(pair.address)
        return {"due": len(due), "voided": marks.void_many(due)}


def is_peak_near(site: Site, moment: datetime) -> Summary:
    """Say whether the re-check is due: the busiest hour of the week begins in ``lead_time_s``, give or take a look.

    Returns:
        ``peak_hour`` (UTC; null: nothing was asked for), ``lead_time_s``, ``is_due``.
    """
    from warmup_tasks.demand.peak import peak_hour
    from warmup_tasks.lake import Lake
    from warmup_tasks.tuning.published import effective_parameters

    lake = Lake(site.lake_uri)
    hour, parameters = peak_hour(lake, moment), effective_parameters(lake, moment)[0]
    if hour is None:
        return {"peak_hour": None, "lead_time_s": parameters.lead_time_s, "is_due": False}
    today = moment.replace(hour=hour, minute=0, second=0, microsecond=0)
    begins = [day - timedelta(seconds=parameters.lead_time_s) for day in (today, today + timedelta(days=1))]
    is_due = any(begin <= moment < begin + LOOK_EVERY for begin in begins)
    return {"peak_hour": hour, "lead_time_s": parameters.lead_time_s, "is_due": is_due}


def _begun(site: Site, moment: datetime, **wishes: Any) -> Run:
    asked = RunRequest(demand_of="newest", tuning_time_s=0, **wishes)
    return nightly.begin(site.lake_uri, asked, {}, moment, RunPolicy(is_paced=True))


def _corrected(site: Site, lake: "Lake", run: Run) -> "Iterator[_Pair]":
    from warmup_tasks.demand.answers import correction_of
    from warmup_tasks.demand.taken_over import newest_demand
    from warmup_tasks.demand.window import read_feedback
    from warmup_tasks.identity import qa_key
    from warmup_tasks.serving.marks import MarkAddress

    source, corrections = newest_demand(lake, run.as_of, [], run.policy.lookback_s), read_feedback(lake, run)
    if source is None or not corrections:
        return
    fleet = present_fleet(site)
    for row in lake.read(f"demand/{source}", "intents").to_pylist():
        tenant, intent = row["tenant"], row["intent_hash"]
        correction = correction_of(tenant, intent, row["member_prompts"], corrections)
        if correction is None:
            continue
        identity = fleet.identity(row["model"], row["adapter"]).digest()
        name = item_id(ItemKind.QA_PAIR, tenant, None, identity, intent)
        yield _Pair(MarkAddress(tenant, identity, name, None), qa_key(tenant, identity, intent), correction)
