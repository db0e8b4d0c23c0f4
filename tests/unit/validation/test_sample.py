"""Which items get a twin: every stratum, every adapter, within the limits, the same for the same seed."""

from collections import Counter
from pathlib import Path

import pytest
import redis

from tests.support.small_night import MODEL, SmallNight, key
from warmup_tasks.fleet_file import AdapterSpec
from warmup_tasks.items import PlanRow
from warmup_tasks.validation.sample import draw, length_band, stratum_of


@pytest.fixture
def night(tmp_path: Path, redis_client: redis.Redis) -> SmallNight:
    specs = [AdapterSpec(name=name, version="1", path=f"/{name}", base_model=MODEL) for name in ("x", "y")]
    return SmallNight(tmp_path, redis_client, {"a": "http://a", "b": "http://b"}, adapters=specs)


def rows_of(night: SmallNight) -> list[PlanRow]:
    for replica in "ab":
        for seed in range(30):
            night.prefix(replica, night.tokens(seed, 4), order=seed, tenant="acme")
            night.prefix(replica, night.tokens(100 + seed, 20), order=seed, tenant="acme")
        night.prefix(replica, night.tokens(200, 4), order=0, tenant="rare")
    return night.rows


@pytest.mark.parametrize(
    ("tokens", "band"), [(17, "under 256"), (256, "256 to 1023"), (1024, "1024 to 4095"), (4096, "4096 and more")]
)
def test_length_bands(tokens: int, band: str) -> None:
    assert length_band(tokens) == band


def test_every_stratum_gets_its_number_where_it_has_as_many(night: SmallNight) -> None:
    rows = rows_of(night)

    chosen = draw(rows, per_stratum=20, per_replica=200, seed=1)

    counts = Counter(stratum_of(row) for row in rows if key(row) in chosen)
    assert sorted(counts.values()) == [1, 1, 20, 20, 20, 20]


def test_the_limit_of_a_replica_is_shared_by_its_strata(night: SmallNight) -> None:
    rows = rows_of(night)

    chosen = draw(rows, per_stratum=20, per_replica=7, seed=1)

    for replica in "ab":
        counts = Counter(stratum_of(row) for row in rows if key(row) in chosen and row.replica == replica)
        assert sorted(counts.values()) == [1, 3, 3]


def test_every_adapter_is_in_whatever_the_limit(night: SmallNight) -> None:
    rows_of(night)
    adapted = [night.prefix("a", night.tokens(300, 4), order=0, adapter=name) for name in ("x", "y")]

    chosen = draw(night.rows, per_stratum=20, per_replica=1, seed=1)

    assert {key(row) for row in adapted} <= chosen


def test_the_seed_alone_decides(night: SmallNight) -> None:
    rows = rows_of(night)

    first = draw(rows, per_stratum=5, per_replica=200, seed=1)

    assert draw(list(reversed(rows)), per_stratum=5, per_replica=200, seed=1) == first
    assert draw(rows, per_stratum=5, per_replica=200, seed=2) != first


def test_held_out_and_refused_rows_are_not_drawn(night: SmallNight) -> None:
    held, refused, good = (night.prefix("a", night.tokens(seed, 4), order=seed) for seed in range(3))
    night.hold_out(held)
    night.rows = [
        row.model_copy(update={"is_chosen": False, "reason": "over capacity"}) if row == refused else row
        for row in night.rows
    ]

    assert draw(night.rows, per_stratum=5, per_replica=5, seed=1) == {key(good)}
