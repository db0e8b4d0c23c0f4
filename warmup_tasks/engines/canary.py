"""Canaries: tiny fixed requests that show what a replica serves right now.

An adapter's canary shows that the engine can use the adapter (listing it proves nothing); the weights' canary gives the
log-probabilities by which a silent change of weights is seen (spec 1.3). What follows from an answer is decided above.
"""

from dataclasses import dataclass

from warmup_tasks.engines.attempts import generate
from warmup_tasks.engines.base import Engine, EngineMetrics, Generation, GenerationRequest
from warmup_tasks.identity import digest
from warmup_tasks.items import PromptBody

CANARY_TEXT = (
    "Canary, always the same words: one two three four five six seven eight nine ten. "
    "The lamp on the far side of the harbour is lit at dusk, and put out again when the first boat comes home. "
    "Count the boats, name the lamp, and say when the night is over: "
)
FINGERPRINT_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Answer:
    """The first tokens of an answer at temperature 0, with the log-probabilities behind them."""

    tokens: tuple[str, ...]
    logprobs: tuple[float, ...]
    top_logprobs: tuple[dict[str, float], ...] = ()

    @classmethod
    def of(cls, generation: Generation) -> "Answer":
        """Return the answer part of a generation."""
        return cls(generation.tokens, generation.logprobs, generation.top_logprobs)


def unused_label(metrics: EngineMetrics) -> str:
    """Return a label that no earlier request of this process can have carried, for salts that must never hit.

    It covers the process and its token counter, which every request raises: a repeated task gets another label.
    """
    return digest({"process": metrics.process_start_s, "tokens": metrics.prompt_tokens})[:16]


async def touch(engine: Engine, model: str, *, deadline_s: float, cache_salt: str | None = None) -> Generation:
    """Generate one token under ``model`` (a base model or an adapter) and return it; refusal raises.

    Raises:
        RejectItemError: the engine refuses, for instance since it does not know the adapter.
        RetryLaterError: it does not answer.
    """
    request = GenerationRequest(PromptBody(prompt=CANARY_TEXT), model, max_tokens=1, cache_salt=cache_salt)
    return await generate(engine, request, deadline_s=deadline_s)


async def fingerprint(engine: Engine, model: str, cache_salt: str, *, deadline_s: float) -> tuple[Answer, Generation]:
    """Return the canary's answer and the generation it came with.

    ``cache_salt`` is one that was never used: cached blocks would answer for weights that are gone.
    """
    request = GenerationRequest(
        PromptBody(prompt=CANARY_TEXT),
        model,
        max_tokens=FINGERPRINT_TOKENS,
        cache_salt=cache_salt,
        with_logprobs=True,
    )
    generation = await generate(engine, request, deadline_s=deadline_s)
    return Answer.of(generation), generation
