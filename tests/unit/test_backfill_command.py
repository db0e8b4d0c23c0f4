"""``warmup backfill``: dates as Airflow needs them, what is left out, what is warmed; and what Airflow makes of it."""

import json
import os
import shlex
from datetime import UTC, date, datetime

import pytest
from typer.testing import CliRunner

from warmup_tasks.airflow.backfill import NIGHT_AT, backfill, explained
from warmup_tasks.cli import app
from warmup_tasks.errors import ConfigurationError

NOW = datetime(2026, 11, 23, 9, tzinfo=UTC)
FIRST, LAST = date(2026, 11, 20), date(2026, 11, 22)


def test_the_last_night_is_not_lost_at_midnight() -> None:
    found = backfill(FIRST, LAST, now=NOW)
    assert shlex.join(found.command) == (
        "airflow backfill create --dag-id nightly_warmup --from-date 2026-11-20T02:00:00+00:00 "
        "--to-date 2026-11-22T02:00:00+00:00 --reprocess-behavior none --max-active-runs 1 --run-backwards"
    )
    assert found.nights == [date(2026, 11, day) for day in (20, 21, 22)]
    assert found.warmed == [LAST]
    assert found.left_out == []


def test_airflow_reads_the_command_and_finds_the_nights(monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.cli.cli_parser import get_parser
    from airflow.sdk import CronDataIntervalTimetable

    found = backfill(FIRST, LAST, now=NOW, reprocess="failed", conf={"models": ["m"]}, is_dry_run=True)
    read = get_parser().parse_args(found.command[1:])
    assert (read.dag_id, read.reprocess_behavior, read.max_active_runs) == ("nightly_warmup", "failed", 1)
    assert (read.run_backwards, read.dry_run, json.loads(read.dag_run_conf)) == (True, True, {"models": ["m"]})
    assert (read.from_date, read.to_date) == tuple(datetime.combine(day, NIGHT_AT) for day in (FIRST, LAST))
    assert CronDataIntervalTimetable(f"0 {NIGHT_AT.hour} * * *", timezone="UTC").expression == "0 2 * * *"


def test_nights_to_come_are_left_out_and_old_ones_are_not_warmed() -> None:
    found = backfill(date(2026, 11, 21), date(2026, 11, 25), now=NOW)
    assert found.nights == [date(2026, 11, 21), LAST]
    assert found.left_out == [date(2026, 11, day) for day in (23, 24, 25)]
    assert backfill(FIRST, FIRST, now=NOW).warmed == []
    with pytest.raises(ConfigurationError, match="complete at 2026-11-24T02:00"):
        backfill(date(2026, 11, 23), date(2026, 11, 25), now=NOW)
    with pytest.raises(ConfigurationError, match="lies after"):
        backfill(LAST, FIRST, now=NOW)


@pytest.mark.parametrize(
    ("conf", "named"), [({"as_of": "2026-11-20T02:00:00Z"}, "as_of"), ({"top_k": "many"}, "top_k"), ({"x": 1}, "x")]
)
def test_a_conf_is_checked_before_airflow_sees_it(conf: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        backfill(FIRST, LAST, now=NOW, conf=conf)


def test_what_airflow_s_refusals_mean() -> None:
    assert "still active" in (explained("airflow.models.backfill.AlreadyRunningBackfill: Another backfill") or "")
    assert explained("something else") is None


def test_the_command_prints_and_runs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    options = ["backfill", "--from", "2026-03-01", "--to", "2026-03-03", "--set", "models=[m]"]
    shown = CliRunner().invoke(app, [*options, "--print"])
    assert shown.exit_code == 0, shown.output
    assert "--to-date 2026-03-03T02:00:00+00:00" in shown.output
    assert "nothing is warmed" in shown.output
    told = CliRunner().invoke(app, [*options, "--print", "--json"])
    assert json.loads(told.stdout)["command"][-1] == '{"models": ["m"]}'
    ran = CliRunner().invoke(app, options)
    assert ran.exit_code == 1
    assert "airflow is not on the PATH" in ran.output
    wrong = CliRunner().invoke(app, ["backfill", "--from", "yesterday", "--to", "2026-03-03"])
    assert "--from yesterday" in wrong.output


def test_what_airflow_says_comes_through(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "airflow"
    fake.write_text("#!/bin/sh\necho 'AlreadyRunningBackfill: Another backfill is running' >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/usr/bin:/bin")
    ran = CliRunner().invoke(app, ["backfill", "--from", "2026-03-01", "--to", "2026-03-03"])
    assert ran.exit_code == 1
    assert "still active" in ran.output
