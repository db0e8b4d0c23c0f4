"""From Airflow's context to the library's arguments: the run, the site, and one call of a step.

The run is fixed by the first task and read back by all others, so that a cleared task repeats what was asked then, even
where a default in the form has changed since. Only the run, small summaries and lists of shard ids travel through XCom.
"""

import json
import logging
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from airflow.sdk import Connection, get_current_context
from airflow.sdk.exceptions import AirflowNotFoundException, AirflowSkipException

from warmup_tasks import gates, nightly, rollout
from warmup_tasks.errors import ConfigurationError, ContractError
from warmup_tasks.fleet_file import FleetFile
from warmup_tasks.identity import digest
from warmup_tasks.releases import Change, Release
from warmup_tasks.runs import Run, wishes_of
from warmup_tasks.settings import Site, validate

if TYPE_CHECKING:
    import redis

log = logging.getLogger(__name__)

FIRST_TASK = "begin"
RELEASE_ASSET = "warmup_release"
REDIS_CONNECTION = "warmup_redis"
LAKE_CONNECTION = "warmup_lake"
FLEET_CONNECTION = "warmup_fleet"
API_KEY_VARIABLE = "WARMUP_ENGINE_API_KEY"
LAKE_EXTRAS = ("lake", "fleet", "profiles", "log", "report")
SUMMARY_MAX_BYTES = 65_536

Summary = dict[str, Any]


def run_from(context: Mapping[str, Any], site: Site) -> Run:
    """Return the run that a DAG run asks for, with the parameters that hold for it now.

    Plan time is the ``as_of`` param where given. Otherwise a manual run plans from its logical date, or, where that is
    null, from the moment that it was queued for (``run_after``); every other run plans from its data interval's end.

    Args:
        context: Airflow's task context; ``logical_date`` and ``data_interval_end`` may be absent.
        site: its lake holds what earlier nights tuned.

    Raises:
        ConfigurationError: a param is refused; the message names it.
    """
    request, explicit = wishes_of(context["params"])
    dag_run = context["dag_run"]
    named = "logical_date" if dag_run.run_type == "manual" else "data_interval_end"
    return nightly.begin(site.lake_uri, request, explicit, context.get(named) or dag_run.run_after)


def begin() -> Summary:
    """Return the run of the current DAG run as JSON, for the tasks that follow."""
    return run_from(get_current_context(), current_site()).model_dump(mode="json")


def current_run() -> Run:
    """Return the run that the first task fixed.

    Raises:
        ContractError: the first task has not run; clear it too.
    """
    value = pull(FIRST_TASK)
    if value is None:
        raise ContractError(f"no run is fixed: clear and run the task {FIRST_TASK!r} first")
    return Run.model_validate(value)


def current_site() -> Site:
    """Return the site: ``WARMUP_*`` variables, over which Airflow connections win where they exist.

    ``warmup_redis`` is a Redis connection. ``warmup_lake`` is a generic connection whose extra JSON may say ``lake``,
    ``fleet``, ``profiles``, ``log`` and ``report``: what the variable of that name would say. ``warmup_fleet`` is a
    generic connection whose extra JSON is a whole fleet file; its password, where it has one, is the engines' API key,
    which fleet files name as ``api_key_env: WARMUP_ENGINE_API_KEY``.

    Raises:
        ConfigurationError: lake, Redis or fleet stand nowhere, or a connection says something unknown.
    """
    env = dict(os.environ)
    if redis := _connection(REDIS_CONNECTION):
        env["WARMUP_REDIS_URL"] = redis_url(redis)
    if lake := _connection(LAKE_CONNECTION):
        env |= lake_variables(lake)
    if fleet := _connection(FLEET_CONNECTION):
        env |= fleet_variables(fleet)
        if fleet.password:
            os.environ[API_KEY_VARIABLE] = fleet.password
    return Site.from_environment(env)


def open_redis() -> "redis.Redis":
    """Return a client of the site's Redis, for what needs nothing else of the site.

    Raises:
        ConfigurationError: Redis stands neither in a connection nor in the environment.
    """
    from warmup_tasks.serving import connect

    found = _connection(REDIS_CONNECTION)
    url = redis_url(found) if found else os.environ.get("WARMUP_REDIS_URL")
    if not url:
        raise ConfigurationError(f"give the connection {REDIS_CONNECTION!r}, or set WARMUP_REDIS_URL")
    return connect(url)


def call(step: Callable[..., Summary], *arguments: Any) -> Summary:
    """Call a step with the current site and run and return its summary, which must stay small.

    Raises:
        ContractError: the summary would not fit an XCom: data belongs in the lake.
    """
    return small(step(current_site(), current_run(), *arguments))


def call_in(group: str, step: Callable[..., Summary]) -> Summary:
    """Call a step with the run that another group's first task fixed; skip the task where that group was skipped."""
    fixed = pull(f"{group}.{FIRST_TASK}")
    if fixed is None:
        raise AirflowSkipException(f"the group {group!r} has no run")
    return small(step(current_site(), Run.model_validate(fixed)))


def asked_release(site: Site) -> tuple[Run, Release]:
    """Return what a DAG run of ``model_release`` asks for: the run as a whole, and what is released.

    The asset's events say what is released, where some triggered the run, else the form.

    Raises:
        ConfigurationError: a field is refused; the message names it.
    """
    context = get_current_context()
    form = {name: value for name, value in context["params"].items() if name in Change.model_fields}
    others = {name: value for name, value in context["params"].items() if name not in Change.model_fields}
    found = context.get("triggering_asset_events") or {}
    extras = [dict(event.extra or {}) for events in found.values() for event in events]
    events = [{name: value for name, value in extra.items() if name != "from_rest_api"} for extra in extras]
    release = Release.of(events or [form], f"extra of {RELEASE_ASSET}" if events else "params")
    return run_from({**context, "params": others}, site), release


def begin_release(part: str) -> Summary:
    """Return the run of one part of a release as JSON, or skip where that part has no replica."""
    site = current_site()
    run = rollout.run_of(site, *asked_release(site), rollout.Part(part))
    if run is None:
        raise AirflowSkipException(f"this release has no replica for its part {part!r}")
    return run.model_dump(mode="json")


def needs_approval() -> bool:
    """Say whether a person decides between the canary and the rest; never about a dry run."""
    run, release = asked_release(current_site())
    return release.needs_approval and not run.request.dry_run


def settle() -> Summary:
    """Drop what a release leaves of the old identities."""
    site = current_site()
    run, release = asked_release(site)
    return small(rollout.settle(site, run.in_release(release)))


def measure(step: Callable[..., Summary], *arguments: Any) -> Summary:
    """Call a measuring step, or skip its task where the run does not ask to measure."""
    if not current_run().request.measure_window_s:
        raise AirflowSkipException("measure_window_s is 0: nothing to measure")
    return call(step, *arguments)


def goes_ahead() -> bool:
    """Say whether the current run warms anything; why not goes into the task's log."""
    is_backfill = get_current_context()["dag_run"].run_type == "backfill"
    why = gates.held_back(current_site(), current_run(), is_backfill=is_backfill)
    if why:
        log.warning("nothing is warmed: %s", why)
    return not why


def in_time(*, is_published: bool) -> Summary:
    """Say whether the current run will be, or was, ready in time; late goes into the task's log and a metric."""
    from airflow.sdk.observability import stats

    found = call(partial(gates.in_time, is_published=is_published))
    stats.gauge("warmup.late_s", found["late_s"])
    if found["late_s"]:
        log.warning("late by %.0f s: ready at %s, asked for %s", found["late_s"], found["ready_at"], found["ready_by"])
    return found


def report_folder() -> str:
    """Return the folder of this run's report: the site's, else one under Airflow's home folder.

    Where a DAG run holds several runs, each in a group of tasks, the group's name stands behind the site's folder.
    """
    site, run = current_site(), current_run()
    group = get_current_context()["ti"].task_id.rpartition(".")[0]
    if site.report_folder and group:
        return str(Path(site.report_folder) / group)
    home = os.environ.get("AIRFLOW_HOME") or Path.home() / "airflow"
    return site.report_folder or str(Path(home) / "warmup-reports" / run.run_id)


def pull(task_id: str) -> Any:
    """Return what a task of this DAG run returned, or None.

    Of several tasks of that name the nearest counts: in the current task's own group, else in a group around it.
    """
    context = get_current_context()
    group = context["ti"].task_id
    while group:
        group = group.rpartition(".")[0]
        nearest = f"{group}.{task_id}" if group else task_id
        if context["dag"].has_task(nearest):
            return context["ti"].xcom_pull(task_ids=nearest)
    return None


def small(summary: Summary) -> Summary:
    """Return the summary, or raise ``ContractError`` where its JSON takes more than 64 KiB."""
    size = len(json.dumps(summary, default=str).encode())
    if size > SUMMARY_MAX_BYTES:
        raise ContractError(f"a step returned {size} bytes, more than {SUMMARY_MAX_BYTES}: data belongs in the lake")
    return summary


def redis_url(connection: Connection) -> str:
    """Return the URL of a Redis connection, as ``serving.connect`` reads it.

    Its extra may say ``ssl``; ``db``, where the schema does not; ``kind``: ``cluster`` or ``sentinel``, whose hosts
    stand in the host field, separated by commas; ``service``, which the sentinels watch; and options of redis-py.
    """
    if not connection.host:
        raise ConfigurationError(f"connection {connection.conn_id!r}: give a host")
    extra = connection.extra_dejson
    kind, is_tls, service = (extra.pop(name, None) for name in ("kind", "ssl", "service"))
    database = extra.pop("db", connection.schema or 0)
    scheme, port, path = "rediss" if is_tls else "redis", connection.port, f"/{database}"
    if kind is None:
        port = port or 6379
    else:
        scheme, path = f"{scheme}+{kind}", f"/{service or ''}"
        extra |= {"db": database} if kind == "sentinel" else {}
    login = ":".join(quote(part or "", safe="") for part in (connection.login, connection.password))
    address = f"{connection.host}:{port}" if port else connection.host
    query = f"?{urlencode(extra)}" if extra else ""
    return f"{scheme}://{login + '@' if login != ':' else ''}{address}{path}{query}"


def lake_variables(connection: Connection) -> dict[str, str]:
    """Return the ``WARMUP_*`` variables that the extra of a ``warmup_lake`` connection stands for."""
    extra = connection.extra_dejson
    if unknown := sorted(set(extra) - set(LAKE_EXTRAS)):
        known = ", ".join(LAKE_EXTRAS)
        raise ConfigurationError(f"connection {connection.conn_id!r}: unknown {', '.join(unknown)}; known: {known}")
    return {f"WARMUP_{name.upper()}": str(value) for name, value in extra.items()}


def fleet_variables(connection: Connection) -> dict[str, str]:
    """Return the variable that names the fleet of a ``warmup_fleet`` connection: a file beside Airflow's, by content.

    A connection without extra holds the API key alone.

    Raises:
        ConfigurationError: the extra is no fleet file; the message names the field.
    """
    if not connection.extra_dejson:
        return {}
    fleet = validate(connection.extra_dejson, FleetFile, f"connection {connection.conn_id!r}")
    text = fleet.model_dump_json(exclude_unset=True)
    folder = Path(os.environ.get("AIRFLOW_HOME") or Path.home() / "airflow") / "warmup-fleets"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{digest(text)[:16]}.json"
    if not path.exists():
        draft = path.with_suffix(f".{os.getpid()}")
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
    return {"WARMUP_FLEET": str(path)}


def _connection(name: str) -> Connection | None:
    try:
        return Connection.get(name)
    except AirflowNotFoundException:
        return None
