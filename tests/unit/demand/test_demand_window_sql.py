"""Which requests a plan sees, and the forecasts of ``sequences.sql`` on inputs worked out by hand."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from math import exp
from typing import Any

import pyarrow as pa
import pytest

from warmup_tasks.demand.window import read_feedback, read_window
from warmup_tasks.fleet_file import FleetFile, ModelSpec
from warmup_tasks.items import Feedback
from warmup_tasks.lake.schemas import to_table
from warmup_tasks.lake.store import Lake
from warmup_tasks.resources import sql
from warmup_tasks.runs import Run
from warmup_tasks.settings import RunPolicy, RunRequest

Ask = Callable[..., dict[str, Any]]
Publish = Callable[[list[dict[str, Any]]], None]

AS_OF = datetime(2026, 11, 27, 2, tzinfo=UTC)
DAY = 86_400.0


def _run(**wishes: Any) -> Run:
    return Run.of(RunRequest(as_of=AS_OF, **wishes), RunPolicy(lookback_s=2 * 86_400))


def _texts(table: pa.Table) -> list[float]:
    return [(AS_OF - time).total_seconds() for time in table["time"].to_pylist()]


def test_a_plan_sees_the_lookback_and_never_as_of_or_later(
    lake: Lake, fleet: FleetFile, ask: Ask, publish: Publish
) -> None:
    ages = [-5.0, 0.0, 0.000001, 60.0, 2 * DAY, 2 * DAY + 0.000001]
    publish([ask("q", age_s=age) for age in ages])
    assert _texts(read_window(lake, _run(), fleet).requests) == [2 * DAY, 60.0, 0.000001]


def test_refused_requests_are_no_demand_and_failed_ones_are(
    lake: Lake, fleet: FleetFile, ask: Ask, publish: Publish
) -> None:
    statuses = [200, None, 400, 404, 413, 429, 408, 500, 503]
    publish([ask("q", status=status) for status in statuses])
    seen = read_window(lake, _run(), fleet).requests["status"].to_pylist()
    assert seen == [200, None, 429, 408, 500, 503]


def test_models_are_mapped_to_the_fleet_and_strangers_are_counted(
    lake: Lake, fleet: FleetFile, ask: Ask, publish: Publish
) -> None:
    publish([ask("q", model=name) for name in ("m", "default", None, "legal", "other", "other")])
    window = read_window(lake, _run(), fleet)
    assert list(zip(window.requests["model"].to_pylist(), window.requests["adapter"].to_pylist(), strict=True)) == [
        ("m", None),
        ("m", None),
        ("m", None),
        ("m", "legal"),
    ]
    assert window.not_served == {"other": 2}


def test_default_means_nothing_where_the_fleet_has_two_models(
    lake: Lake, fleet: FleetFile, ask: Ask, publish: Publish
) -> None:
    two = fleet.model_copy(update={"models": [*fleet.models, ModelSpec(name="n")]})
    publish([ask("q", model=name) for name in ("default", None)])
    assert read_window(lake, _run(), two).not_served == {"default": 1, "(no model)": 1}


def test_tenants_and_models_asked_for_are_honoured(lake: Lake, fleet: FleetFile, ask: Ask, publish: Publish) -> None:
    publish([ask("q", tenant=tenant) for tenant in ("acme", "beta", None)])
    assert read_window(lake, _run(tenants=["beta"]), fleet).requests["tenant"].to_pylist() == ["beta"]
    assert read_window(lake, _run(models=["n"]), fleet).requests.num_rows == 0


def test_an_empty_lake_gives_an_empty_window(lake: Lake, fleet: FleetFile) -> None:
    window = read_window(lake, _run(), fleet)
    assert (window.requests.num_rows, window.not_served) == (0, {})


def _sequences(lake: Lake, rows: list[dict[str, Any]], **parameters: float) -> list[dict[str, Any]]:
    columns = {
        "tenant": pa.string(), "model": pa.string(), "adapter": pa.string(), "cache_salt": pa.string(),
        "request_type": pa.string(), "prompt_sha256": pa.string(), "body_sha256": pa.string(),
        "is_truncated": pa.bool_(), "body_json": pa.string(), "session_id": pa.string(), "status": pa.int32(),
        "time": pa.timestamp("us", tz="UTC"), "latency_ms": pa.float64(), "input_tokens": pa.int64(),
    }  # fmt: skip
    defaults = {
        "span_s": 2 * DAY,
        "observed_s": 2 * DAY,
        "horizon_s": DAY,
        "backtest_s": DAY / 2,
        "window_s": 5,
        "tau_fast_s": 30.0,
    }
    table = pa.Table.from_pylist([{"model": "m"} | row for row in rows], schema=pa.schema(columns.items()))
    bound = defaults | {"as_of": AS_OF, "tau_slow_s": 21_600.0} | parameters
    result: list[dict[str, Any]] = lake.query(sql("demand/sequences"), {"requests_window": table}, bound).to_pylist()
    return result


def _at(age_s: float, prompt: str = "p", **values: Any) -> dict[str, Any]:
    return {"time": AS_OF - timedelta(seconds=age_s), "prompt_sha256": prompt, "status": 200} | values


def test_a_prompt_s_uses_heat_sessions_and_latency_are_summed(lake: Lake) -> None:
    rows = [
        _at(3.0, session_id="s2", latency_ms=10.0),
        _at(33.0, session_id="s1", latency_ms=30.0),
        _at(33.0, session_id="s1", status=500, latency_ms=9999.0),
        _at(3.0, prompt="other"),
    ]
    found = _sequences(lake, rows)
    assert [(row["prompt_sha256"], row["uses"], row["ok_uses"]) for row in found] == [("p", 3, 2), ("other", 1, 1)]
    assert found[0]["heat_fast"] == pytest.approx(1 + 2 * exp(-1))
    assert found[0]["sessions"] == ["s1", "s2"]
    assert found[0]["latency_ms"] == pytest.approx(20.0)


def test_the_static_forecast_carries_the_rate_forward(lake: Lake) -> None:
    (row,) = _sequences(lake, [_at(age * 3600) for age in range(1, 9)])
    assert row["static_uses"] == pytest.approx(8 * 0.5)


def test_the_dynamic_forecast_is_the_recent_rate_and_then_the_same_hours_of_earlier_days(lake: Lake) -> None:
    recent = exp(-0.0) * 21_600 / (21_600 * (1 - exp(-2 * DAY / 21_600)))
    # 18 hours ago and 42 hours ago: 6 hours after as_of on the clock, just outside the first tau_slow
    (row,) = _sequences(lake, [_at(17 * 3600), _at(41 * 3600)])
    weights = exp(-(17 * 3600 - 5) / 21_600) + exp(-(41 * 3600 - 5) / 21_600)
    assert row["dynamic_uses"] == pytest.approx(weights * recent + 2 * 0.5)
    # 20 hours ago: 4 hours after as_of on the clock, where the recent rate speaks alone
    (row,) = _sequences(lake, [_at(20 * 3600)])
    assert row["dynamic_uses"] == pytest.approx(exp(-(20 * 3600 - 5) / 21_600) * recent)


def test_without_a_whole_day_the_rest_of_the_horizon_follows_the_lookback_s_rate(lake: Lake) -> None:
    span = 43_200.0
    (row,) = _sequences(lake, [_at(36_005.0)], span_s=span, backtest_s=span / 4)
    recent = exp(-36_000 / 21_600) * 21_600 / (21_600 * (1 - exp(-span / 21_600)))
    assert row["dynamic_uses"] == pytest.approx(recent + (DAY - 21_600) / span)


def test_the_backtest_forecasts_from_before_its_own_as_of_only(lake: Lake) -> None:
    (row,) = _sequences(lake, [_at(DAY / 4), _at(DAY), _at(1.5 * DAY)])
    assert row["back_actual_uses"] == 1
    assert row["back_static_uses"] == pytest.approx(2 * (DAY / 2) / (1.5 * DAY))


def _feedback(**values: Any) -> Feedback:
    base = {"time": AS_OF - timedelta(days=1), "tenant": "acme", "prompt_sha256": "p", "intent_hash": None}
    return Feedback(**(base | {"confidence": 0.5, "correction": "new", "adopted_count": 3} | values))


@pytest.mark.parametrize(
    ("row", "answers"),
    [
        (_feedback(), ["new"]),
        (_feedback(confidence=0.85), []),
        (_feedback(confidence=0.84), ["new"]),
        (_feedback(adopted_count=2), []),
        (_feedback(correction=None), []),
        (_feedback(time=AS_OF), []),
    ],
)
def test_a_correction_needs_low_confidence_and_three_adoptions(lake: Lake, row: Feedback, answers: list[str]) -> None:
    lake.publish("feedback", f"{row.time:%Y-%m-%d}", {"feedback": to_table([row], Feedback)})
    assert [found["correction"] for found in read_feedback(lake, _run())] == answers


def test_the_newest_correction_of_a_prompt_wins(lake: Lake) -> None:
    rows = [_feedback(correction="later"), _feedback(correction="old", time=AS_OF - timedelta(days=1, hours=1))]
    lake.publish("feedback", "2026-11-26", {"feedback": to_table(rows, Feedback)})
    assert [found["correction"] for found in read_feedback(lake, _run())] == ["later"]
