"""Many requests at once on a cache that is too small: answers stay right, nothing leaks, order is kept."""

import random
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import httpx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from warmup_tasks.engines.double.answers import Sampling
from warmup_tasks.engines.double.config import DoubleConfig
from warmup_tasks.engines.double.core import Core
from warmup_tasks.engines.double.flights import Flight
from warmup_tasks.engines.double.process import start_double

SMALL = {"time_scale": 0, "num_gpu_blocks": 22, "max_model_len": 300, "max_num_batched_tokens": 64}
REQUESTS = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 200), st.integers(1, 60)), min_size=1, max_size=12)


def answer(client: httpx.Client, stem: int, length: int, max_tokens: int, **fields: object) -> str:
    prompt = [stem * 1000 + n for n in range(length)]
    body = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True} | fields
    told = client.post("/v1/completions", json=body)
    assert told.status_code == 200, told.text
    return told.json()["choices"][0]["text"]


def test_crowded_double_answers_as_a_roomy_one_does() -> None:
    with (
        start_double(**SMALL) as crowded,
        start_double(time_scale=0) as roomy,
        httpx.Client(base_url=crowded.url, timeout=20) as small,
        httpx.Client(base_url=roomy.url, timeout=20) as large,
        ThreadPoolExecutor(12) as workers,
    ):

        @settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
        @given(REQUESTS)
        def same(requests: list[tuple[int, int, int]]) -> None:
            told = list(workers.map(lambda request: answer(small, *request), requests))
            assert told == [answer(large, *request, cache_salt=str(random.random())) for request in requests]
            blocks = small.get("/double/state").json()["blocks"]
            assert (blocks["held"], blocks["free"]) == (0, 21)

        same()
        list(workers.map(lambda stem: answer(small, stem, 100, 150), range(12)))
        page = small.get("/metrics").text
        (preemptions,) = re.findall(r"^vllm:num_preemptions_total\{.*\} (\S+)$", page, flags=re.MULTILINE)
        assert float(preemptions) > 0


def test_no_more_adapters_run_together_than_allowed(write_adapter: Callable[..., str]) -> None:
    paths = {name: write_adapter(name, name.encode()) for name in "abc"}
    with (
        start_double(time_scale=0, adapters=paths, max_loras=1) as double,
        httpx.Client(base_url=double.url, timeout=20) as client,
        ThreadPoolExecutor(6) as workers,
    ):
        alone = [answer(client, 1, 30, 20, model=name) for name in "abc"]
        together = list(workers.map(lambda name: answer(client, 1, 30, 20, model=name, cache_salt="x"), "abcabc"))
    assert together == alone * 2
    assert len(set(alone)) == 3


async def test_priority_runs_first_and_then_the_older() -> None:
    core = Core(DoubleConfig(scheduling_policy="priority", max_num_seqs=1, time_scale=0))
    core.scheduler.pause(freeze=True)
    flights = [Flight([n], None, None, 3, Sampling(), priority) for n, priority in enumerate((2, 1, 1, 0))]
    for flight in flights:
        core.scheduler.add(flight)
    core.scheduler.resume()
    for flight in flights:
        await flight.finished.wait()
    await core.aclose()
    assert sorted(flights, key=lambda flight: flight.last_token_s) == [flights[n] for n in (3, 1, 2, 0)]
