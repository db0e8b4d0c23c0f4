"""From Airflow's context to the run and the site; what may travel through XCom; which shards are mapped."""

import json
import os
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from tests.dags import nights
from warmup_tasks.errors import ConfigurationError, ContractError
from warmup_tasks.settings import Site

RUN_AFTER = datetime(2026, 11, 28, 9, 30, 5, tzinfo=UTC)
INTERVAL_END = datetime(2026, 11, 28, 2, tzinfo=UTC)
LOGICAL = datetime(2026, 11, 27, 2, tzinfo=UTC)
SITE = Site.from_environment(nights.SITE_ENV)


def context(run_type: str, params: dict[str, Any] | None = None, **dates: datetime) -> dict[str, Any]:
    dag_run = SimpleNamespace(run_type=run_type, run_after=RUN_AFTER)
    return {"params": params or {}, "dag_run": dag_run, **dates}


def as_of(given: dict[str, Any]) -> datetime:
    from warmup_tasks.airflow.context import run_from

    return run_from(given, SITE).as_of


def test_a_scheduled_run_and_a_backfill_plan_from_their_interval_s_end() -> None:
    for run_type in ("scheduled", "backfill"):
        given = context(run_type, logical_date=LOGICAL, data_interval_start=LOGICAL, data_interval_end=INTERVAL_END)
        assert as_of(given) == INTERVAL_END


def test_a_run_by_hand_plans_from_its_date_or_from_the_moment_it_was_asked_for() -> None:
    assert as_of(context("manual", logical_date=LOGICAL, data_interval_end=INTERVAL_END)) == LOGICAL
    assert as_of(context("manual")) == RUN_AFTER
    assert as_of(context("manual", params={"as_of": None})) == RUN_AFTER


def test_as_of_wins_over_every_date() -> None:
    named = {"as_of": "2026-11-01T02:00:00Z"}
    for run_type in ("manual", "scheduled"):
        given = context(run_type, named, logical_date=LOGICAL, data_interval_end=INTERVAL_END)
        assert as_of(given) == datetime(2026, 11, 1, 2, tzinfo=UTC)


def test_a_run_survives_the_way_through_xcom() -> None:
    import json

    from warmup_tasks.airflow.context import run_from
    from warmup_tasks.runs import Run

    run = run_from(context("manual", {"top_k": 50, "tenants": ["acme/eu"], "seed": 3}), SITE)
    sent = json.dumps(run.model_dump(mode="json"))
    assert Run.model_validate(json.loads(sent)) == run
    assert len(sent) < 4096


def test_the_site_comes_from_variables_and_connections_win(monkeypatch: pytest.MonkeyPatch) -> None:
    from warmup_tasks.airflow.context import current_site

    for name, value in nights.SITE_ENV.items():
        monkeypatch.setenv(name, value)
    assert current_site().redis_url == nights.SITE_ENV["WARMUP_REDIS_URL"]
    monkeypatch.setenv("AIRFLOW_CONN_WARMUP_REDIS", '{"conn_type": "redis", "host": "cache", "password": "p@ss"}')
    monkeypatch.setenv(
        "AIRFLOW_CONN_WARMUP_LAKE", '{"conn_type": "generic", "extra": {"lake": "s3://b/warm", "report": "/srv/r"}}'
    )
    site = current_site()
    assert site.redis_url == "redis://:p%40ss@cache:6379/0"
    assert (site.lake_uri, site.report_folder) == ("s3://b/warm", "/srv/r")
    assert site.fleet_path == nights.SITE_ENV["WARMUP_FLEET"]


def test_an_incomplete_site_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    from warmup_tasks.airflow.context import current_site

    for name in nights.SITE_ENV:
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigurationError, match="WARMUP_LAKE, WARMUP_REDIS_URL, WARMUP_FLEET"):
        current_site()


@pytest.mark.parametrize(
    ("fields", "url"),
    [
        ({"host": "h"}, "redis://h:6379/0"),
        ({"host": "h", "port": 7000, "login": "u", "password": "a:b"}, "redis://u:a%3Ab@h:7000/0"),
        ({"host": "h", "extra": '{"db": 3, "ssl": true}'}, "rediss://h:6379/3"),
        ({"host": "h", "schema": "2"}, "redis://h:6379/2"),
        (
            {"host": "h", "extra": '{"ssl": true, "ssl_ca_certs": "/etc/my ca.crt"}'},
            "rediss://h:6379/0?ssl_ca_certs=%2Fetc%2Fmy+ca.crt",
        ),
        ({"host": "a,b:7000", "extra": '{"kind": "cluster"}'}, "redis+cluster://a,b:7000/"),
        (
            {"host": "a,b", "password": "p", "extra": '{"kind": "sentinel", "service": "warm", "ssl": true}'},
            "rediss+sentinel://:p@a,b/warm?db=0",
        ),
    ],
)
def test_a_redis_connection_becomes_a_url(fields: dict[str, Any], url: str) -> None:
    from airflow.sdk import Connection

    from warmup_tasks.airflow.context import redis_url

    assert redis_url(Connection(conn_id="warmup_redis", conn_type="redis", **fields)) == url


def test_connections_are_refused_with_the_field_that_is_wrong() -> None:
    from airflow.sdk import Connection

    from warmup_tasks.airflow.context import lake_variables, redis_url

    with pytest.raises(ConfigurationError, match="host"):
        redis_url(Connection(conn_id="warmup_redis", conn_type="redis"))
    with pytest.raises(ConfigurationError, match="unknown bucket; known: lake"):
        lake_variables(Connection(conn_id="warmup_lake", conn_type="generic", extra='{"bucket": "b"}'))


def test_a_20_mb_summary_never_reaches_xcom() -> None:
    from warmup_tasks.airflow.context import small

    assert small({"planned": 7}) == {"planned": 7}
    with pytest.raises(ContractError, match="data belongs in the lake"):
        small({"plan": "x" * 20_000_000})


def test_a_plan_that_the_dag_cannot_carry_out_is_refused() -> None:
    from warmup_tasks.airflow.shards import check_shards

    with pytest.raises(ConfigurationError, match="profile 'huge' has no branch"):
        check_shards({"shards": {"huge": {"0": []}}}, ["small"])
    with pytest.raises(ConfigurationError, match="1025 shards in wave 3"):
        check_shards({"shards": {"small": {"3": [f"s{n}" for n in range(1025)]}}}, ["small"])
    with pytest.raises(ContractError, match="must be a text"):
        check_shards({"shards": {"small": {"3": [{"items": []}]}}}, ["small"])
    good = {"shards": {"small": {"3": [f"s{n}" for n in range(1024)]}}}
    assert check_shards(good, ["small", "large"]) is good


def test_shards_of_a_wave_without_any_are_an_empty_list() -> None:
    from warmup_tasks.airflow.shards import shards_of

    summary = {"shards": {"small": {"0": ["small.w0.00"]}}}
    assert shards_of(summary, "small", 0) == ["small.w0.00"]
    assert shards_of(summary, "small", 1) == shards_of(summary, "large", 0) == []


def test_the_number_of_shards_does_not_depend_on_the_number_of_items() -> None:
    from warmup_tasks.airflow.shards import MAX_SHARDS_PER_WAVE
    from warmup_tasks.items import KINDS, ItemKind
    from warmup_tasks.planning.drafts import Draft, PlanDraft
    from warmup_tasks.settings import load_profiles

    states: Any = [SimpleNamespace(replica=f"r{n}", profile=("large", "small")[n % 2]) for n in range(4)]
    unused: Any = None
    shapes = []
    for count in (1, 1025, 10_000):
        draft = PlanDraft(run=unused, fleet=unused, profiles=load_profiles(), states=states)
        draft.drafts += [
            Draft(
                kind,
                f"{n:032x}",
                "small",
                "r1" if KINDS[kind].is_per_replica else None,
                *[None] * 2,
                "m",
                None,
                "i",
                "p",
            )
            for n in range(count)
            for kind in (list(ItemKind)[n % len(ItemKind)],)
        ]
        shapes.append(draft.shards())
    assert shapes[0] == shapes[1] == shapes[2]
    assert {len(ids) for waves in shapes[0].values() for ids in waves.values()} == {2}
    assert max(len(ids) for waves in shapes[2].values() for ids in waves.values()) <= MAX_SHARDS_PER_WAVE


def test_a_connection_may_hold_the_fleet_and_the_engines_key(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.sdk import Connection

    from warmup_tasks.airflow.context import current_site
    from warmup_tasks.fleet_file import load_fleet

    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    for name, value in nights.SITE_ENV.items():
        monkeypatch.setenv(name, value)
    fleet = {
        "models": [{"name": "m"}],
        "replicas": [{"name": "a", "url": "http://a", "profile": "large", "model": "m"}],
        "embedder": {"embedder": "hash", "revision": "1", "dimensions": 8},
    }
    uri = Connection(conn_id="warmup_fleet", conn_type="generic", password="k", extra=json.dumps(fleet)).get_uri()
    monkeypatch.setenv("AIRFLOW_CONN_WARMUP_FLEET", uri)
    monkeypatch.setenv("WARMUP_ENGINE_API_KEY", "")
    site = current_site()
    assert [replica.name for replica in load_fleet(site.fleet_path).replicas] == ["a"]
    assert current_site() == site
    assert os.environ["WARMUP_ENGINE_API_KEY"] == "k"
    wrong = Connection(
        conn_id="warmup_fleet", conn_type="generic", extra=json.dumps({**fleet, "replica": []})
    ).get_uri()
    monkeypatch.setenv("AIRFLOW_CONN_WARMUP_FLEET", wrong)
    with pytest.raises(ConfigurationError, match=r"(?s)warmup_fleet.*replica"):
        current_site()
