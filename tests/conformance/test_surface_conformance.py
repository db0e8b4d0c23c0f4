"""What the surface answers: tokenisation, usage, refusals, log-probabilities, streaming, metrics, the key's scope."""

from contextlib import aclosing

import httpx
import pytest

from tests.conformance.subjects import BLOCK_SIZE, DEADLINE_S, KEY_VARIABLE, MODEL, Prompts, Subject, ask
from warmup_tasks.engines.base import Engine, GenerationRequest
from warmup_tasks.engines.epochs import epoch_of
from warmup_tasks.engines.observation import chat_template_digest
from warmup_tasks.engines.tokens import tokenize_many
from warmup_tasks.errors import ConfigurationError, RejectItemError
from warmup_tasks.items import PromptBody, Reason

TOOL = {"type": "function", "function": {"name": "lookup", "parameters": {"type": "object", "properties": {}}}}
SECRET = "the-secret-of-a-tenant"


async def test_capabilities_are_detected(engine: Engine) -> None:
    found = await engine.capabilities(deadline_s=DEADLINE_S)
    assert (found.block_size, found.max_model_len, MODEL in found.models) == (BLOCK_SIZE, 4096, True)
    assert (found.has_tokenize, found.has_prefix_reset, found.has_runtime_adapters) == (True, True, True)
    assert found.version != "unknown"
    assert (await engine.report(deadline_s=DEADLINE_S)).model == MODEL


async def test_tokenize_counts_what_usage_counts(engine: Engine, prompts: Prompts) -> None:
    plain = PromptBody(messages=[{"role": "user", "content": prompts.text(30)}])
    with_tools = plain.model_copy(update={"tools": [TOOL]})
    bodies = [
        plain,
        with_tools,
        with_tools.model_copy(update={"template_args": {"date_string": "2026-11-27"}}),
        PromptBody(prompt=prompts.text(40)),
        PromptBody(token_ids=prompts.ids(45)),
    ]
    counts = []
    for body in bodies:
        ids = await engine.tokenize(body, MODEL, deadline_s=DEADLINE_S)
        assert (await ask(engine, body)).prompt_tokens == len(ids)
        counts.append(len(ids))
    assert counts[0] < counts[1] < counts[2]


async def test_many_prompts_are_tokenised_in_order_and_refused_one_by_one(engine: Engine, prompts: Prompts) -> None:
    texts = [prompts.text(5 + i % 7) for i in range(60)]
    models = [MODEL if i != 17 else "no-such-model" for i in range(60)]
    pairs = [(PromptBody(prompt=text), model) for text, model in zip(texts, models, strict=True)]
    found = await tokenize_many(engine, pairs, concurrency=8, deadline_s=DEADLINE_S)
    assert isinstance(found[17], RejectItemError)
    for index in (0, 16, 18, 59):
        assert found[index] == await engine.tokenize(pairs[index][0], MODEL, deadline_s=DEADLINE_S)


async def test_chat_template_digest_is_stable(engine: Engine) -> None:
    seen = {await chat_template_digest(engine, MODEL, deadline_s=DEADLINE_S) for _ in range(2)}
    assert len(seen) == 1
    assert None not in seen


async def test_list_of_prompts_reports_the_last_ones_cached_tokens(http: httpx.AsyncClient, prompts: Prompts) -> None:
    """Why warm requests carry one prompt each."""
    long, short = prompts.ids(6 * BLOCK_SIZE + 1), prompts.ids(2 * BLOCK_SIZE + 1)
    body = {"model": MODEL, "prompt": [long, short], "max_tokens": 1, "temperature": 0}
    await http.post("/v1/completions", json=body)
    usage = (await http.post("/v1/completions", json=body)).json()["usage"]
    assert usage["prompt_tokens"] == len(long) + len(short)
    assert usage["prompt_tokens_details"]["cached_tokens"] == 2 * BLOCK_SIZE


@pytest.mark.parametrize("salt", ["", "a@b", "a/b", "a\\b", "a\0b", "x" * 129])
async def test_unusable_salts_are_refused(engine: Engine, salt: str) -> None:
    with pytest.raises(RejectItemError) as refused:
        await ask(engine, PromptBody(prompt=SECRET), salt=salt)
    assert refused.value.reason == Reason.ENGINE_REFUSED
    assert SECRET not in str(refused.value)


async def test_salt_of_128_characters_is_taken(engine: Engine, prompts: Prompts) -> None:
    assert (await ask(engine, prompts.ids(3), salt="x" * 128)).prompt_tokens == 3


async def test_refusals_name_the_reason_and_quote_no_prompt(engine: Engine, prompts: Prompts) -> None:
    refused = {
        "no tokens": (GenerationRequest(PromptBody(prompt=SECRET), MODEL, max_tokens=0), Reason.ENGINE_REFUSED),
        "model": (GenerationRequest(PromptBody(prompt=SECRET), "no-such-model"), Reason.ENGINE_REFUSED),
        "too long": (GenerationRequest(PromptBody(token_ids=prompts.ids(4097)), MODEL), Reason.TOO_LONG),
    }
    for what, (request, reason) in refused.items():
        with pytest.raises(RejectItemError) as error:
            await engine.generate(request, deadline_s=DEADLINE_S)
        assert error.value.reason == reason, what
        assert SECRET not in repr(error.value)


@pytest.mark.parametrize("is_chat", [False, True])
async def test_logprobs_stand_beside_their_tokens(engine: Engine, prompts: Prompts, is_chat: bool) -> None:
    text = prompts.text(30)
    body = PromptBody(messages=[{"role": "user", "content": text}]) if is_chat else PromptBody(prompt=text)
    answer = await ask(engine, body, max_tokens=6, with_logprobs=True)
    assert len(answer.tokens) == len(answer.logprobs) == len(answer.top_logprobs) == answer.completion_tokens == 6
    for token, value, top in zip(answer.tokens, answer.logprobs, answer.top_logprobs, strict=True):
        assert value <= 0
        assert len(top) >= 2
        assert top[token] == pytest.approx(value)
        assert max(top.values()) == pytest.approx(value)  # temperature 0 takes the likeliest


@pytest.mark.parametrize("is_chat", [False, True])
async def test_stream_comes_in_pieces_and_ends_with_usage(engine: Engine, prompts: Prompts, is_chat: bool) -> None:
    text = prompts.text(60)
    body = PromptBody(messages=[{"role": "user", "content": text}]) if is_chat else PromptBody(prompt=text)
    request = GenerationRequest(body, MODEL, max_tokens=5)
    async with aclosing(engine.stream(request, deadline_s=DEADLINE_S)) as stream:
        chunks = [chunk async for chunk in stream]
    *pieces, last = chunks
    assert len(pieces) >= 2
    assert all(piece.prompt_tokens is None for piece in pieces)
    assert [piece.finish_reason for piece in pieces if piece.finish_reason] == ["length"]
    assert (last.completion_tokens, last.cached_tokens) == (5, 0)
    whole = await engine.generate(request, deadline_s=DEADLINE_S)
    assert whole.text == "".join(piece.text for piece in pieces)
    assert 0 < whole.ttft_ms <= whole.latency_ms


async def test_metrics_are_all_there(engine: Engine, prompts: Prompts) -> None:
    before = await engine.metrics(deadline_s=DEADLINE_S)
    await ask(engine, prompts.ids(200))
    after = await engine.metrics(deadline_s=DEADLINE_S)
    assert after.prefix_queries_tokens - before.prefix_queries_tokens == 200
    assert (after.block_size, after.running, after.waiting) == (BLOCK_SIZE, 0, 0)
    assert epoch_of(after) == epoch_of(before) != epoch_of(after, generation=1)


async def test_key_protects_v1_and_nothing_else(
    subject: Subject, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with httpx.AsyncClient(base_url=subject.replica.url) as keyless:
        assert (await keyless.get("/v1/models")).status_code == 401
        body = {"model": MODEL, "prompt": SECRET, "max_tokens": 1}
        assert (await keyless.post("/v1/completions", json=body)).status_code == 401
        assert (await keyless.get("/metrics")).status_code == 200
        assert (await keyless.post("/reset_prefix_cache")).status_code == 200
    monkeypatch.setenv(KEY_VARIABLE, "another-key")
    async with subject.open() as stranger:
        with pytest.raises(ConfigurationError, match=KEY_VARIABLE):
            await stranger.generate(GenerationRequest(PromptBody(prompt=SECRET), MODEL), deadline_s=DEADLINE_S)
    monkeypatch.delenv(KEY_VARIABLE)
    with pytest.raises(ConfigurationError, match=KEY_VARIABLE):
        subject.open()
