"""What adapters do: loading and unloading, blocks of their own, stale blocks after an overwrite."""

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from tests.conformance.subjects import BLOCK_SIZE, DEADLINE_S, MODEL, Prompts, Subject, are_answers_equal, ask
from warmup_tasks.engines.base import Engine, Generation
from warmup_tasks.errors import RejectItemError
from warmup_tasks.items import PromptBody, Reason


@pytest.fixture
async def name(engine: Engine, prompts: Prompts) -> AsyncIterator[str]:
    """An adapter name of this test's own, unloaded afterwards."""
    chosen = f"adapter-{prompts.salt()[:8]}"
    yield chosen
    await engine.unload_adapter(chosen, deadline_s=DEADLINE_S)


async def test_adapter_table(engine: Engine, subject: Subject, http: httpx.AsyncClient, name: str) -> None:
    """Statuses as an engine gives them: ok, again, in place, bad path, rank too high; unload ok, again."""
    path = str(subject.adapters["a"])

    async def load(path: str, **more: object) -> int:
        body = {"lora_name": name, "lora_path": path, **more}
        return (await http.post("/v1/load_lora_adapter", json=body)).status_code

    async def unload() -> int:
        return (await http.post("/v1/unload_lora_adapter", json={"lora_name": name})).status_code

    assert [await load(path), await load(path), await load(path, load_inplace=True)] == [200, 400, 200]
    assert [await unload(), await unload()] == [200, 404]
    assert [await load("/no/such/folder"), await load(str(subject.adapters["high-rank"]))] == [404, 500]


async def test_loaded_again_is_success_only_at_the_same_path(engine: Engine, subject: Subject, name: str) -> None:
    path, other = str(subject.adapters["a"]), str(subject.adapters["b"])
    await engine.load_adapter(name, path, deadline_s=DEADLINE_S)
    await engine.load_adapter(name, path, deadline_s=DEADLINE_S)
    with pytest.raises(RejectItemError) as refused:
        await engine.load_adapter(name, other, deadline_s=DEADLINE_S)
    assert refused.value.reason == Reason.ADAPTER_PATH_DIFFERS
    listed = {adapter.name: (adapter.root, adapter.parent) for adapter in await engine.adapters(deadline_s=DEADLINE_S)}
    assert listed[name] == (path, MODEL)


async def test_refused_adapters_say_why(engine: Engine, subject: Subject, name: str) -> None:
    for path in ("/no/such/folder", str(subject.adapters["high-rank"])):
        with pytest.raises(RejectItemError) as refused:
            await engine.load_adapter(name, path, deadline_s=DEADLINE_S)
        assert refused.value.reason == Reason.ENGINE_REFUSED
        assert path in refused.value.detail
    assert "rank 16" in refused.value.detail


async def test_unloading_twice_is_unloaded(engine: Engine, subject: Subject, name: str) -> None:
    await engine.load_adapter(name, str(subject.adapters["a"]), deadline_s=DEADLINE_S)
    await engine.unload_adapter(name, deadline_s=DEADLINE_S)
    await engine.unload_adapter(name, deadline_s=DEADLINE_S)
    assert name not in [adapter.name for adapter in await engine.adapters(deadline_s=DEADLINE_S)]


async def test_adapter_has_blocks_and_answers_of_its_own(
    engine: Engine, subject: Subject, prompts: Prompts, name: str
) -> None:
    await engine.load_adapter(name, str(subject.adapters["a"]), deadline_s=DEADLINE_S)
    prompt = prompts.ids(5 * BLOCK_SIZE + 1)
    base = await ask(engine, prompt, max_tokens=8, with_logprobs=True)
    cold = await ask(engine, prompt, model=name, max_tokens=8, with_logprobs=True)
    warm = await ask(engine, prompt, model=name, max_tokens=8, with_logprobs=True)
    assert (base.cached_tokens, cold.cached_tokens, warm.cached_tokens) == (0, 0, 5 * BLOCK_SIZE)
    assert are_answers_equal(cold, warm, subject.logprob_tolerance)
    assert not are_answers_equal(base, cold, subject.logprob_tolerance)


async def test_chat_with_an_adapter_hits_the_blocks_of_its_token_ids(
    engine: Engine, subject: Subject, prompts: Prompts, name: str
) -> None:
    await engine.load_adapter(name, str(subject.adapters["b"]), deadline_s=DEADLINE_S)
    body = PromptBody(messages=[{"role": "user", "content": prompts.text(200)}])
    ids = await engine.tokenize(body, name, deadline_s=DEADLINE_S)
    blocks = (len(ids) - 1) // BLOCK_SIZE
    await ask(engine, ids[: blocks * BLOCK_SIZE + 1], model=name)
    assert (await ask(engine, body, model=name)).cached_tokens == blocks * BLOCK_SIZE > 0


@pytest.mark.parametrize("reload", ["unload and load", "in place"])
async def test_weights_overwritten_at_one_path_leave_stale_blocks(
    engine: Engine,
    subject: Subject,
    prompts: Prompts,
    http: httpx.AsyncClient,
    name: str,
    tmp_path: Path,
    reload: str,
) -> None:
    """Cached tokens are reported and the answer is wrong; a reset mends it."""
    path = shutil.copytree(subject.adapters["a"], tmp_path / "adapter")
    prompt = prompts.ids(8 * BLOCK_SIZE + 1)

    async def answer(salt: str | None = None) -> Generation:
        return await ask(engine, prompt, model=name, salt=salt, max_tokens=8, with_logprobs=True)

    await engine.load_adapter(name, str(path), deadline_s=DEADLINE_S)
    await answer()
    shutil.copytree(subject.adapters["b"], path, dirs_exist_ok=True)
    if reload == "in place":
        body = {"lora_name": name, "lora_path": str(path), "load_inplace": True}
        assert (await http.post("/v1/load_lora_adapter", json=body)).status_code == 200
    else:
        await engine.unload_adapter(name, deadline_s=DEADLINE_S)
        await engine.load_adapter(name, str(path), deadline_s=DEADLINE_S)
    right = await answer(salt=prompts.salt())
    stale = await answer()
    assert (right.cached_tokens, stale.cached_tokens) == (0, 8 * BLOCK_SIZE)
    assert not are_answers_equal(right, stale, subject.logprob_tolerance)

    assert await engine.reset_prefix_cache(deadline_s=DEADLINE_S)
    mended = await answer()
    assert mended.cached_tokens == 0
    assert are_answers_equal(right, mended, subject.logprob_tolerance)
