"""What a planned run is held against: whether it goes ahead, and whether it is in time. It warms and changes nothing.

A verdict here rests on the plan, on the clock and on what newer runs left in Redis; what is done about it is wired in
the DAGs.
"""

from datetime import UTC, datetime, timedelta
from typing import Any

from warmup_tasks.errors import GiveUpError
from warmup_tasks.runs import Run
from warmup_tasks.settings import Site

Summary = dict[str, Any]


def held_back(site: Site, run: Run, *, is_backfill: bool = False) -> str:
    """Return why a planned run warms nothing, "" where it goes ahead, and keep it for the report.

    A dry run ends with its plan. So does a day of a backfill whose horizon has passed, since nobody will ask for what
    it would warm; and any run all of whose replicas hold what a newer plan warmed, since warming would evict that.
    """
    from warmup_tasks.lake import Lake

    why = _reason_to_stop(site, run, is_backfill=is_backfill)
    lake = Lake(site.lake_uri)
    if why or lake.latest("held_back", run.run_id) is not None:
        lake.publish("held_back", run.run_id, {}, meta={"why": why})
    return why


def _reason_to_stop(site: Site, run: Run, *, is_backfill: bool) -> str:
    from warmup_tasks.lake import Lake
    from warmup_tasks.serving import connect
    from warmup_tasks.serving.readiness import ReadinessStore

    if run.request.dry_run:
        return "a dry run ends with its plan"
    if is_backfill and run.is_over(_now()):
        return f"the time that it plans for has passed: {run.policy.horizon_s / 3600:g} h from {run.as_of.isoformat()}"
    states = Lake(site.lake_uri).read(f"replicas/{run.run_id}", "replicas", ["model", "replica"]).to_pylist()
    with connect(site.redis_url) as redis:
        newer = ReadinessStore(redis).newer(run.as_of, _now())
    if states and all(newer.covers(state["model"], state["replica"]) for state in states):
        return "a newer plan has warmed every replica that it plans for"
    return ""


def in_time(site: Site, run: Run, *, is_published: bool = False) -> Summary:
    """Say whether a run will be ready in time by its plan's estimate, or, once published, whether it was.

    A run whose horizon has passed, and one without a deadline, is not late.

    Raises:
        GiveUpError: it is late, and the run was to turn red then.
    """
    from warmup_tasks.deadlines import deadline_of
    from warmup_tasks.lake import Lake

    lake, now = Lake(site.lake_uri), _now()
    peak = lake.meta(f"demand/{run.run_id}").get("peak_at")
    peak_at = datetime.fromisoformat(peak) if peak else None
    deadline = deadline_of(run.request.ready_by, run.as_of, peak_at, run.parameters.lead_time_s)
    if deadline is None or run.is_over(now):
        return {"ready_by": None, "late_s": 0.0}
    takes_s = 0.0 if is_published else lake.meta(f"plan/{run.run_id}")["cost"]["ready_in_s"]
    ready_at = now + timedelta(seconds=takes_s)
    late_s = max(0.0, (ready_at - deadline.at).total_seconds())
    told = {"ready_by": deadline.at.isoformat(), "basis": deadline.basis, "ready_at": ready_at.isoformat()}
    if late_s and run.request.is_red_when_late:
        what = "was ready" if is_published else "will be ready"
        raise GiveUpError(
            f"late: it {what} at {told['ready_at']}, {late_s:.0f} s after {told['ready_by']}: "
            "lower top_k or budget_share, leave out replicas, or start earlier"
        )
    return {**told, "late_s": late_s}


def _now() -> datetime:
    return datetime.now(UTC)
