"""The client against doubles that misbehave, and the survey of a fleet that is partly there."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest

from warmup_tasks.engines.base import Engine, Generation, GenerationRequest
from warmup_tasks.engines.connect import open_engine
from warmup_tasks.engines.double.process import DoubleProcess, start_double
from warmup_tasks.engines.survey import survey
from warmup_tasks.engines.tokens import tokenize_many
from warmup_tasks.errors import MissingMetricError, RejectItemError, RetryLaterError
from warmup_tasks.fleet_file import FleetFile, ReplicaSpec
from warmup_tasks.items import PromptBody, Reason

MODEL = "base-model"
SECRET = "the-secret-of-a-tenant"


@pytest.fixture(scope="module")
def running() -> Iterator[DoubleProcess]:
    with start_double(model=MODEL, dtype="bfloat16", time_scale=0.05) as process:
        yield process


@pytest.fixture
async def http(running: DoubleProcess) -> AsyncIterator[httpx.AsyncClient]:
    """Sets faults; afterwards there are none."""
    async with httpx.AsyncClient(base_url=running.url) as client:
        yield client
        await client.delete("/double/faults")


@pytest.fixture
async def engine(running: DoubleProcess) -> AsyncIterator[Engine]:
    async with open_engine(spec(running.url)) as client:
        yield client


def spec(url: str, name: str = "r1", **more: str) -> ReplicaSpec:
    return ReplicaSpec(name=name, url=url, profile="small", model=MODEL, **more)


def fleet(*replicas: ReplicaSpec, **model: str) -> FleetFile:
    embedder = {"embedder": "e", "revision": "1", "dimensions": 3}
    data = {"models": [{"name": MODEL, **model}], "replicas": [r.model_dump() for r in replicas], "embedder": embedder}
    return FleetFile.model_validate(data)


async def ask(engine: Engine, words: int = 100, deadline_s: float = 20.0) -> Generation:
    body = PromptBody(prompt=f"{SECRET} " * words)
    return await engine.generate(GenerationRequest(body, MODEL, max_tokens=4), deadline_s=deadline_s)


@pytest.mark.parametrize("details", ["absent", "null", "null_cached_tokens", "no_usage"])
async def test_engine_that_does_not_say_leaves_it_unknown(
    engine: Engine, http: httpx.AsyncClient, details: str
) -> None:
    (await http.post("/double/faults", json={"usage_details": details})).raise_for_status()
    assert [(await ask(engine)).cached_tokens for _ in range(2)] == [None, None]


@pytest.mark.parametrize(
    "fault",
    [
        {"hang": {"share": 1.0}},
        {"refuse": {"share": 1.0}},
        {"fail": {"share": 1.0}},
        {"break_stream": {"share": 1.0}, "break_stream_by": "error"},
        {"break_stream": {"share": 1.0}, "break_stream_by": "disconnect"},
    ],
)
async def test_failing_engine_is_asked_again_later(
    engine: Engine, http: httpx.AsyncClient, fault: dict[str, object]
) -> None:
    (await http.post("/double/faults", json=fault)).raise_for_status()
    with pytest.raises(RetryLaterError) as error:
        await ask(engine, deadline_s=1.0)
    assert SECRET not in repr(error.value)


async def test_nobody_listening_is_asked_again_later() -> None:
    async with open_engine(spec("http://127.0.0.1:9")) as engine:
        with pytest.raises(RetryLaterError, match="r1"):
            await engine.metrics(deadline_s=5.0)


async def test_runtime_adapters_off_is_said_so(engine: Engine, http: httpx.AsyncClient) -> None:
    (await http.post("/double/faults", json={"runtime_adapters_off": True})).raise_for_status()
    assert (await engine.capabilities(deadline_s=5.0)).has_runtime_adapters is False
    for call in (engine.load_adapter("a", "/p", deadline_s=5.0), engine.unload_adapter("a", deadline_s=5.0)):
        with pytest.raises(RejectItemError) as refused:
            await call
        assert refused.value.reason == Reason.ADAPTER_UPDATES_OFF


@pytest.mark.parametrize("status", [404, 422])
async def test_optional_endpoint_that_is_not_there_becomes_a_note(
    engine: Engine, http: httpx.AsyncClient, status: int
) -> None:
    paths = ["/v1/embeddings", "/version", "/server_info"]
    faults = {"endpoint_status": dict.fromkeys(paths, status)}
    (await http.post("/double/faults", json=faults)).raise_for_status()
    found = await engine.capabilities(deadline_s=5.0)
    assert found.has_embeddings is False
    assert any("/v1/embeddings" in note for note in found.notes)
    assert found.version == "unknown"
    assert (await engine.report(deadline_s=5.0)).dtype is None
    assert await engine.reset_prefix_cache(deadline_s=5.0) is False  # outside developer mode


async def test_missing_metric_is_an_error(engine: Engine, http: httpx.AsyncClient) -> None:
    faults = {"missing_metrics": ["vllm:prefix_cache_hits"]}
    (await http.post("/double/faults", json=faults)).raise_for_status()
    with pytest.raises(MissingMetricError, match="prefix_cache_hits"):
        await engine.metrics(deadline_s=5.0)


async def test_embeddings_come_in_order(engine: Engine) -> None:
    texts = ["one", "two", "one"]
    one, two, again = await engine.embed(texts, MODEL, deadline_s=5.0)
    assert one == again != two
    assert len(one) == 384


async def test_closed_stream_is_aborted_on_the_engine(engine: Engine) -> None:
    stream = engine.stream(GenerationRequest(PromptBody(prompt="go on " * 50), MODEL, max_tokens=8000), deadline_s=20.0)
    await anext(stream)
    await stream.aclose()
    async with asyncio.timeout(10.0):
        while (await engine.metrics(deadline_s=5.0)).running > 0:  # noqa: ASYNC110 another process
            await asyncio.sleep(0.01)


async def test_tokenising_gives_up_as_a_whole_when_the_engine_fails(engine: Engine, http: httpx.AsyncClient) -> None:
    (await http.post("/double/faults", json={"endpoint_status": {"/tokenize": 503}})).raise_for_status()
    with pytest.raises(RetryLaterError):
        await tokenize_many(engine, [(PromptBody(prompt="x"), MODEL)] * 50, deadline_s=0.5)
    assert await tokenize_many(engine, [], deadline_s=5.0) == []


async def test_survey_describes_and_leaves_out_who_does_not_answer(running: DoubleProcess) -> None:
    declared = fleet(spec(running.url), spec("http://127.0.0.1:9", "gone"), dtype="fp16", weights_revision="r1")
    states, problems = await survey(declared, "run", {"r1": "e1"}, open_engine=open_engine, deadline_s=20.0, seed=7)
    (state,) = states
    assert (state.replica, state.epoch, state.has_usage_details) == ("r1", "e1", True)
    assert state.identity_digest == declared.identity(MODEL).digest()
    assert state.base_ms >= 0
    assert state.probe_tokens == 3 * (64 + 512)
    assert list(problems) == ["gone"]


async def test_survey_measures_cold_again_when_it_is_repeated(running: DoubleProcess, engine: Engine) -> None:
    before = await engine.metrics(deadline_s=5.0)
    for _ in range(2):
        await survey(fleet(spec(running.url)), "run", {}, open_engine=open_engine, deadline_s=20.0, seed=7)
    after = await engine.metrics(deadline_s=5.0)
    assert after.prefix_hits_tokens == before.prefix_hits_tokens
    assert after.prefix_queries_tokens - before.prefix_queries_tokens == 2 * 1728


async def test_survey_names_what_contradicts_the_fleet_file() -> None:
    with start_double(model=MODEL, dtype="bfloat16", developer_mode=True, time_scale=0.0) as process:
        declared = fleet(spec(process.url), dtype="fp16", chat_template_digest="another")
        states, _ = await survey(declared, "run", {}, open_engine=open_engine, deadline_s=20.0, seed=7)
        agreeing = fleet(spec(process.url), dtype="bf16")
        fine, _ = await survey(agreeing, "run", {}, open_engine=open_engine, deadline_s=20.0, seed=7)
    assert [problem.split(":")[0] for problem in states[0].contradictions] == ["dtype", "chat_template_digest"]
    assert fine[0].contradictions == []


async def test_survey_of_chosen_replicas_asks_no_other(running: DoubleProcess) -> None:
    declared = fleet(spec(running.url), spec("http://127.0.0.1:9", "gone"))
    states, problems = await survey(
        declared, "run", {}, open_engine=open_engine, deadline_s=20.0, seed=7, replicas=["r1"]
    )
    assert ([state.replica for state in states], problems) == (["r1"], {})
