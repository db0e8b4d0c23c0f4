"""The heat map's SQL on tiny inputs with values worked out by hand (spec 2.1)."""

from datetime import UTC, datetime, timedelta
from math import e, exp, log, sqrt
from typing import Any

import pyarrow as pa
import pytest

from warmup_tasks.demand.heat import BUCKETS, HeatMap, bucket_of, heat_map
from warmup_tasks.lake.store import Lake

AS_OF = datetime(2026, 11, 27, 2, tzinfo=UTC)


def _map(lake: Lake, events: list[tuple[float, int]], lookback_s: float = 60.0) -> HeatMap:
    times = [AS_OF - timedelta(seconds=age) for age, _ in events]
    table = pa.table(
        {
            "time": pa.array(times, pa.timestamp("us", tz="UTC")),
            "bucket": pa.array([bucket for _, bucket in events], pa.int32()),
        }
    )
    return heat_map(lake, table, AS_OF, lookback_s=lookback_s, tau_fast_s=30.0, tau_slow_s=21_600.0)


def _bucket(heat: HeatMap, bucket: int) -> dict[str, Any]:
    return heat.buckets.to_pylist()[bucket]


def test_a_peak_is_worth_itself_at_age_0_and_a_share_of_e_at_age_tau(lake: Lake) -> None:
    heat = _map(lake, [(1.0, 3)] * 7 + [(31.0, 4)] * 7, lookback_s=60)
    assert _bucket(heat, 3)["heat_fast"] == pytest.approx(7.0)
    assert _bucket(heat, 4)["heat_fast"] == pytest.approx(7.0 / e)
    assert _bucket(heat, 4)["heat_slow"] == pytest.approx(7.0 * exp(-30 / 21_600))


def test_windows_end_at_as_of_and_their_edges_belong_to_the_newer_one(lake: Lake) -> None:
    heat = _map(lake, [(0.000001, 0), (5.0, 0), (5.000001, 0), (10.0, 0), (0.0, 0), (-3.0, 0)])
    assert heat.cells.to_pylist() == [
        {"window_index": 0, "bucket": 0, "requests": 2},
        {"window_index": 1, "bucket": 0, "requests": 2},
    ]


def test_intensity_is_population_std_over_mean_with_the_empty_windows(lake: Lake) -> None:
    # four windows with counts 2, 0, 1, 1: mean 1, population variance 0.5
    heat = _map(lake, [(1.0, 9), (2.0, 9), (11.0, 9), (16.0, 9)], lookback_s=20)
    assert _bucket(heat, 9)["intensity"] == pytest.approx(sqrt(0.5))


def test_an_empty_bucket_and_a_single_window_have_intensity_0(lake: Lake) -> None:
    assert _bucket(_map(lake, [(1.0, 9)], lookback_s=20), 8)["intensity"] == 0.0
    assert _bucket(_map(lake, [(1.0, 9), (2.0, 9)], lookback_s=5), 9)["intensity"] == 0.0


def test_entropy_is_in_nats_and_an_all_zero_row_has_no_value(lake: Lake) -> None:
    heat = _map(lake, [(1.0, 0), (1.0, 1), (1.0, 2), (1.0, 2), (11.0, 5)], lookback_s=20)
    moments = heat.moments.to_pylist()
    entropy = 0.25 * log(4) * 2 + 0.5 * log(2)
    assert moments[0]["entropy_nats"] == pytest.approx(entropy)
    assert moments[0]["concentration"] == pytest.approx(1 - entropy / log(BUCKETS))
    assert moments[1] == {"window_index": 1, "requests": 0, "entropy_nats": None, "concentration": None}
    assert (moments[2]["entropy_nats"], moments[2]["concentration"]) == (0.0, 1.0)
    assert len(moments) == 4


def test_no_requests_at_all_give_a_whole_map_of_nothing(lake: Lake) -> None:
    heat = _map(lake, [], lookback_s=10)
    assert heat.cells.num_rows == 0
    assert [row["heat_fast"] for row in heat.buckets.to_pylist()] == [0.0] * BUCKETS
    assert heat.moments["entropy_nats"].null_count == 2


def test_what_is_shared_always_has_the_same_bucket() -> None:
    assert {bucket_of("root") for _ in range(3)} == {bucket_of("root")}
    assert len({bucket_of(str(number)) for number in range(1000)}) == BUCKETS
