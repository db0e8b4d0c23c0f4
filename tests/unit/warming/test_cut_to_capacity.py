"""A plan that is longer than the cache: the engine came back smaller, and the hottest are what it should hold."""

from pathlib import Path

import redis

from tests.support.small_night import SmallNight, key
from warmup_tasks.engines.double.process import start_double
from warmup_tasks.items import Outcome, Reason


def test_a_list_longer_than_the_cache_is_cut_to_the_hottest(tmp_path: Path, redis_client: redis.Redis) -> None:
    with start_double(num_gpu_blocks=65, max_model_len=512, time_scale=0) as small:
        night = SmallNight(tmp_path, redis_client, {"a": small})
        rows = [night.prefix("a", night.tokens(seed, 10), order=seed) for seed in range(12)]
        night.publish_plan()
        night.publish_epochs()
        night.warm()
    receipts = night.receipts()
    assert [row for row in rows if receipts[key(row)].outcome is Outcome.WARMED] == rows[-7:]
    assert {receipts[key(row)].reason for row in rows[:-7]} == {Reason.OVER_CAPACITY}
