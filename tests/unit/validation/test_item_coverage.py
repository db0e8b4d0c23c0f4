"""An item behind a balancing address is as warm as the replicas that hold it: k of n, item by item and as a whole."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from tests.support.small_night import MODEL, SmallNight, write_adapter
from warmup_tasks.engines.double.process import DoubleProcess, start_double
from warmup_tasks.fleet_file import AdapterSpec
from warmup_tasks.items import ItemKind, Reason


@pytest.fixture(scope="module")
def doubles() -> Iterator[dict[str, DoubleProcess]]:
    settings = {"developer_mode": True, "latency": {"per_token_ms": 0.3}}
    with start_double(**settings) as a, start_double(**settings) as b, start_double(**settings) as c:
        yield {"a": a, "b": b, "c": c}


def test_items_and_replicas_are_counted(
    doubles: dict[str, DoubleProcess], tmp_path: Path, redis_client: redis.Redis
) -> None:
    spec = AdapterSpec(name="support", version="1", path=str(write_adapter(tmp_path / "s")), base_model=MODEL)
    night = SmallNight(tmp_path, redis_client, doubles, adapters=[spec])
    everywhere, lost_on_c = (night.tokens(seed, 20) for seed in range(2))
    for name in doubles:
        night.prefix(name, everywhere, order=1)
    for name in "abc":
        night.prefix(name, lost_on_c, order=0)
    night.adapter("a", "support")
    night.stored(ItemKind.EMBEDDING, "no replica has it")
    night.publish_plan()
    night.publish_epochs()
    night.twins()
    night.warm()
    night.control("c", "/reset_prefix_cache")
    night.http.post(f"{night.urls['c']}/v1/completions", json={"model": MODEL, "prompt": everywhere, "max_tokens": 1})
    night.publish_epochs()
    night.probe()
    summary = night.publish()

    assert summary["reasons"] == {Reason.RESIDENCY_MISS: 1}
    found = summary["coverage"][MODEL]
    assert found["items"] == {"3 of 3": 1, "2 of 3": 1, "1 of 3": 1}
    assert (found["ready"], found["replicas"], found["missing"]) == (3, 3, {})
    assert night.lake.meta(f"marks/{night.run.run_id}")["coverage"] == summary["coverage"]

    night.control("c", "/double/restart")
    night.publish_epochs()
    again = night.publish()["coverage"][MODEL]
    assert (again["ready"], again["items"]) == (2, {"2 of 3": 2, "1 of 3": 1})
    assert set(again["missing"]) == {"c"}
