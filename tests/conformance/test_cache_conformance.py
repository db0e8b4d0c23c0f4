"""What the prefix cache does: whole blocks, shared heads, salts, eviction, resets, sleep, events."""

import asyncio
from contextlib import aclosing

import httpx
import pytest

from tests.conformance import checks
from tests.conformance.subjects import BLOCK_SIZE, CAPACITY_TOKENS, DEADLINE_S, MODEL, Prompts, Subject, ask
from warmup_tasks.engines.base import Engine, GenerationRequest
from warmup_tasks.engines.cache_picture import CachePicture
from warmup_tasks.engines.counters import cached_tokens_between
from warmup_tasks.items import PromptBody

TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {"b": {}, "a": {}}}}}
    for name in ("weather", "clock")
]


@pytest.mark.parametrize("surplus", [0, 1, 17])
async def test_same_prompt_twice_hits_its_whole_blocks(engine: Engine, prompts: Prompts, surplus: int) -> None:
    prompt = prompts.ids(10 * BLOCK_SIZE + surplus)
    assert (await ask(engine, prompt)).cached_tokens == 0
    assert (await ask(engine, prompt)).cached_tokens == (10 if surplus else 9) * BLOCK_SIZE


async def test_prompt_shorter_than_a_block_never_hits(engine: Engine, prompts: Prompts) -> None:
    prompt = prompts.ids(BLOCK_SIZE - 1)
    assert [(await ask(engine, prompt)).cached_tokens for _ in range(3)] == [0, 0, 0]


async def test_common_head_hits_up_to_the_first_other_token(engine: Engine, prompts: Prompts) -> None:
    head = prompts.ids(6 * BLOCK_SIZE)
    await ask(engine, head + prompts.ids(50))
    assert (await ask(engine, head + prompts.ids(70))).cached_tokens == 6 * BLOCK_SIZE
    changed = [*head[: 2 * BLOCK_SIZE + 1], *prompts.ids(1), *head[2 * BLOCK_SIZE + 2 :]]
    hit = (await ask(engine, changed)).cached_tokens
    assert hit == (2 * BLOCK_SIZE if changed != head else 5 * BLOCK_SIZE)


@pytest.mark.parametrize("salted", [False, True])
async def test_chat_hits_the_blocks_of_its_token_ids(engine: Engine, prompts: Prompts, salted: bool) -> None:
    """What is warmed as token ids on completions is what the live chat request finds, tools and arguments included."""
    salt = prompts.salt() if salted else None
    body = PromptBody(
        messages=[
            {"role": "system", "content": prompts.text(150)},
            {"role": "user", "content": prompts.text(20)},
        ],
        tools=TOOLS,
        template_args={"date_string": prompts.salt()},
    )
    ids = await engine.tokenize(body, MODEL, deadline_s=DEADLINE_S)
    blocks = (len(ids) - 1) // BLOCK_SIZE
    warmed = await ask(engine, ids[: blocks * BLOCK_SIZE + 1], salt=salt)
    live = await ask(engine, body, salt=salt)
    assert warmed.cached_tokens == 0
    assert blocks >= 4
    assert (live.prompt_tokens, live.cached_tokens) == (len(ids), blocks * BLOCK_SIZE)
    reordered = body.model_copy(update={"tools": list(reversed(TOOLS))})
    assert ((await ask(engine, reordered, salt=salt)).cached_tokens or 0) < blocks * BLOCK_SIZE


async def test_salts_separate(engine: Engine, prompts: Prompts) -> None:
    await checks.salts_separate(engine, prompts)


async def test_full_cache_evicts_the_oldest(engine: Engine, prompts: Prompts) -> None:
    capabilities = await engine.capabilities(deadline_s=DEADLINE_S)
    assert capabilities.capacity_tokens == CAPACITY_TOKENS
    await checks.full_cache_evicts_the_oldest(engine, prompts)


async def test_warm_answers_equal_cold_ones(engine: Engine, prompts: Prompts, subject: Subject) -> None:
    await checks.warm_answers_equal_cold_ones(engine, prompts, subject)


async def test_counter_deltas_agree_with_usage(engine: Engine, prompts: Prompts) -> None:
    prompt = prompts.ids(7 * BLOCK_SIZE + 9)
    for expected in (0, 7 * BLOCK_SIZE):
        before = await engine.metrics(deadline_s=DEADLINE_S)
        answer = await ask(engine, prompt)
        after = await engine.metrics(deadline_s=DEADLINE_S)
        assert answer.cached_tokens == expected
        assert cached_tokens_between(before, after, len(prompt)) == expected
        assert after.prompt_tokens - before.prompt_tokens == len(prompt)


async def test_concurrent_requests_compute_a_common_head_once(engine: Engine, prompts: Prompts) -> None:
    head, tail = prompts.ids(30 * BLOCK_SIZE), 40
    before = await engine.metrics(deadline_s=DEADLINE_S)
    await asyncio.gather(*(ask(engine, head + prompts.ids(tail)) for _ in range(8)))
    after = await engine.metrics(deadline_s=DEADLINE_S)
    asked = after.prefix_queries_tokens - before.prefix_queries_tokens
    computed = asked - (after.prefix_hits_tokens - before.prefix_hits_tokens)
    assert asked == 8 * (len(head) + tail)
    assert computed == len(head) + 8 * tail


async def test_reset_empties_the_cache(engine: Engine, prompts: Prompts) -> None:
    await checks.reset_empties_the_cache(engine, prompts)


async def test_reset_while_a_request_runs_does_not_happen(
    engine: Engine, prompts: Prompts, http: httpx.AsyncClient
) -> None:
    for _ in range(10):  # an answer may end before the reset is asked for: then the next prompt
        prompt = prompts.ids(4 * BLOCK_SIZE + 1)
        request = GenerationRequest(PromptBody(token_ids=prompt), MODEL, max_tokens=3000)
        async with aclosing(engine.stream(request, deadline_s=DEADLINE_S)) as running:
            await anext(running)
            answer = await http.post("/reset_prefix_cache")
            was_reset = await engine.reset_prefix_cache(deadline_s=DEADLINE_S)
            still_runs = (await engine.metrics(deadline_s=DEADLINE_S)).running > 0
        await until_quiet(engine)
        if still_runs:
            break
    assert still_runs
    assert (answer.status_code, answer.json(), was_reset) == (200, {"success": False}, False)
    assert (await ask(engine, prompt)).cached_tokens == 4 * BLOCK_SIZE


@pytest.mark.parametrize(
    ("calls", "is_kept"),
    [
        (["/sleep?level=0", "/wake_up"], True),
        (["/sleep?level=1", "/wake_up"], False),
        (["/pause", "/resume"], False),
    ],
)
async def test_sleep_and_pause_end_the_cache(
    engine: Engine, prompts: Prompts, http: httpx.AsyncClient, calls: list[str], is_kept: bool
) -> None:
    prompt = prompts.ids(4 * BLOCK_SIZE + 1)
    await ask(engine, prompt)
    for call in calls:
        assert (await http.post(call)).status_code == 200
    assert (await ask(engine, prompt)).cached_tokens == (4 * BLOCK_SIZE if is_kept else 0)


async def test_events_tell_what_is_stored_and_cleared(engine: Engine, prompts: Prompts) -> None:
    events = engine.kv_events()
    assert events is not None
    async with asyncio.timeout(DEADLINE_S), aclosing(events) as stream:
        reading = asyncio.ensure_future(anext(stream))
        while not reading.done():  # a subscription needs a moment to reach the publisher
            await ask(engine, prompts.ids(BLOCK_SIZE + 1))
            await asyncio.wait([reading], timeout=0.05)
        prompt = prompts.ids(3 * BLOCK_SIZE + 1)
        await ask(engine, prompt)
        event = reading.result()
        while event.token_ids != tuple(prompt[: 3 * BLOCK_SIZE]):
            event = await anext(stream)
        assert event.kind == "stored"
        assert len(event.block_hashes) == 3
        assert await engine.reset_prefix_cache(deadline_s=DEADLINE_S)
        await ask(engine, prompts.ids(BLOCK_SIZE + 1))
        while event.kind != "cleared":
            event = await anext(stream)


async def test_old_and_new_events_show_what_lies_in_the_cache(
    engine: Engine, prompts: Prompts, subject: Subject
) -> None:
    await engine.load_adapter("a", str(subject.adapters["a"]), deadline_s=DEADLINE_S)
    before, salted, tuned, after = (prompts.ids(3 * BLOCK_SIZE + 5) for _ in range(4))
    await ask(engine, before)
    await ask(engine, salted, salt="a-salt")
    await ask(engine, tuned, model="a", salt="a-salt")
    picture = CachePicture()
    events = engine.kv_contents()
    assert events is not None

    def blocks(prompt: list[int], adapter: str | None = None, salt: str | None = None) -> int:
        return picture.resident_blocks(prompt, BLOCK_SIZE, adapter=adapter, cache_salt=salt)

    async with asyncio.timeout(DEADLINE_S), aclosing(events) as stream:
        while not picture.is_current:
            picture.take(await anext(stream))
        assert (blocks(before), blocks(before, salt="a-salt"), blocks(before, "a")) == (3, 0, 0)
        assert (blocks(salted, salt="a-salt"), blocks(salted)) == (3, 0)
        assert (blocks(tuned, "a", "a-salt"), blocks(tuned, "a"), blocks(tuned, salt="a-salt")) == (3, 0, 0)
        assert blocks([*before[: 2 * BLOCK_SIZE], *after]) == 2
        await ask(engine, after)
        while blocks(after) < 3:
            picture.take(await anext(stream))
        while blocks(before):
            await ask(engine, prompts.ids(CAPACITY_TOKENS // 4))
            picture.take(await anext(stream))
        assert (await ask(engine, before)).cached_tokens == 0


async def until_quiet(engine: Engine) -> None:
    """Wait until no request runs."""
    async with asyncio.timeout(DEADLINE_S):
        while (await engine.metrics(deadline_s=DEADLINE_S)).running > 0:  # noqa: ASYNC110 the engine is another process
            await asyncio.sleep(0.02)
