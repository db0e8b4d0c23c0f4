"""The checks that decide whether readiness can be believed; mutated doubles must fail them."""

from tests.conformance.subjects import BLOCK_SIZE, DEADLINE_S, Prompts, Subject, are_answers_equal, ask
from warmup_tasks.engines.base import Engine


def whole_blocks(tokens: int) -> int:
    """Return the tokens of a prompt that can be cached: whole blocks, and never the last token."""
    return (tokens - 1) // BLOCK_SIZE * BLOCK_SIZE


async def salts_separate(engine: Engine, prompts: Prompts) -> None:
    """A prompt that is warm under one salt, or none, is cold under every other."""
    prompt = prompts.ids(5 * BLOCK_SIZE + 3)
    salts = [None, prompts.salt(), prompts.salt()]
    first = [(await ask(engine, prompt, salt=salt)).cached_tokens for salt in salts]
    again = [(await ask(engine, prompt, salt=salt)).cached_tokens for salt in salts]
    assert first == [0, 0, 0]
    assert again == [5 * BLOCK_SIZE] * 3


async def full_cache_evicts_the_oldest(engine: Engine, prompts: Prompts) -> None:
    """Of twelve prompts of 1,000 tokens in 9,600 tokens of cache the newest nine stay whole, the oldest two go."""
    sent = [prompts.ids(1000) for _ in range(12)]
    for prompt in sent:
        await ask(engine, prompt)
    newest_first = [(await ask(engine, prompt)).cached_tokens for prompt in reversed(sent)]
    assert newest_first[:9] == [whole_blocks(1000)] * 9
    assert newest_first[10:] == [0, 0]


async def warm_answers_equal_cold_ones(engine: Engine, prompts: Prompts, subject: Subject) -> None:
    """At temperature 0 the answer from the cache is the answer without it."""
    for length in (3 * BLOCK_SIZE + 5, 12 * BLOCK_SIZE + 1):
        prompt = prompts.ids(length)
        cold = await ask(engine, prompt, max_tokens=16, with_logprobs=True)
        warm = await ask(engine, prompt, max_tokens=16, with_logprobs=True)
        assert (cold.cached_tokens, warm.cached_tokens) == (0, whole_blocks(length))
        assert are_answers_equal(cold, warm, subject.logprob_tolerance)


async def reset_empties_the_cache(engine: Engine, prompts: Prompts) -> None:
    """After a reset that says so nothing is resident."""
    prompt = prompts.ids(4 * BLOCK_SIZE + 1)
    await ask(engine, prompt)
    assert (await ask(engine, prompt)).cached_tokens == 4 * BLOCK_SIZE
    assert await engine.reset_prefix_cache(deadline_s=DEADLINE_S)
    assert (await ask(engine, prompt)).cached_tokens == 0
