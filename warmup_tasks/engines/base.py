"""The engine interface: what the system asks of any engine, and what an engine may leave unanswered.

Here live the interface and its value types. An implementation is one file beside this one and passes the conformance
suite in ``tests/conformance``. Every call takes a deadline; *unknown* is None, never 0; errors are those of
``warmup_tasks.errors``: ``RetryLaterError`` for timeouts, refused connections, 429 and 5xx, ``RejectItemError`` for a
request the engine refuses, ``MissingMetricError`` for an absent metric.
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Self

from warmup_tasks.items import PromptBody


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What was detected on one replica; None means *cannot be told without trying*."""

    engine: str
    version: str
    models: tuple[str, ...]
    block_size: int
    capacity_tokens: int
    max_model_len: int
    has_usage_details: bool | None
    has_runtime_adapters: bool | None
    has_prefix_reset: bool
    has_tokenize: bool
    has_embeddings: bool
    has_kv_events: bool
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EngineReport:
    """What the engine says of its identity (spec 1.3); None where it says nothing."""

    model: str
    root: str | None
    dtype: str | None
    quantization: str | None
    weights_revision: str | None


@dataclass(frozen=True, slots=True)
class AdapterListing:
    """One adapter as the engine lists it: name, path and base model. Listing is no proof of residency."""

    name: str
    root: str | None
    parent: str | None


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One generation. ``model`` is the base model's served name, or the adapter's name."""

    body: PromptBody
    model: str
    max_tokens: int = 1
    temperature: float = 0.0
    cache_salt: str | None = None
    with_logprobs: bool = False
    seed: int | None = 0


@dataclass(frozen=True, slots=True)
class Chunk:
    """One streamed piece: text, its tokens' log-probabilities, and usage where the engine sent it (last chunk)."""

    text: str
    tokens: tuple[str, ...] = ()
    logprobs: tuple[float, ...] = ()
    top_logprobs: tuple[dict[str, float], ...] = ()
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    finish_reason: str | None = None


@dataclass(frozen=True, slots=True)
class Generation:
    """A finished generation. ``ttft_ms`` is measured by the client from sending to the first token."""

    text: str
    tokens: tuple[str, ...]
    logprobs: tuple[float, ...]
    top_logprobs: tuple[dict[str, float], ...]
    ttft_ms: float
    latency_ms: float
    prompt_tokens: int | None
    cached_tokens: int | None
    completion_tokens: int | None


@dataclass(frozen=True, slots=True)
class EngineMetrics:
    """One scrape of the engine's metrics; counters are in tokens and since process start.

    ``is_awake`` is None where the engine does not tell; an engine that sleeps has dropped its cache.
    ``max_adapters`` is how many adapters it serves at a time; engines do not tell before one was asked for.
    ``first_tokens`` is the histogram of times to first token: (upper bound in s, requests up to it), the last bound
    infinite; empty where the engine does not tell.
    """

    process_start_s: float
    prefix_queries_tokens: float
    prefix_hits_tokens: float
    prompt_tokens: float
    kv_usage_share: float
    running: float
    waiting: float
    block_size: int
    capacity_blocks: int
    is_awake: bool | None = None
    max_adapters: int | None = None
    first_tokens: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True, slots=True)
class KvEvent:
    """A KV-cache event: ``stored``, ``removed``, ``cleared``, or ``lost`` (events are missing: the picture is void).

    Of a ``stored`` one, ``parent`` is the block before the first one, None at the head of a prompt; ``extra_keys`` is
    what tells each block apart from others with the same tokens: the adapter's name, and at the head of a prompt the
    salt. ``group`` is not 0 where a model has caches of several kinds. ``current`` parts what was from what comes.
    """

    kind: str
    block_hashes: tuple[int | bytes, ...] = ()
    token_ids: tuple[int, ...] = field(default=(), repr=False)
    parent: int | bytes | None = None
    extra_keys: tuple[tuple[object, ...], ...] = field(default=(), repr=False)
    group: int = 0


class Engine(ABC):
    """One replica. Use as an asynchronous context manager; calls may run concurrently."""

    @abstractmethod
    async def capabilities(self, *, deadline_s: float) -> Capabilities:
        """Detect version, block size, capacity and endpoints. A 404 or 422 of an optional endpoint becomes a note."""

    @abstractmethod
    async def report(self, *, deadline_s: float) -> EngineReport:
        """Return what the engine reports of its identity."""

    @abstractmethod
    async def tokenize(self, body: PromptBody, model: str, *, deadline_s: float) -> list[int]:
        """Return the token ids of the rendered prompt: the chat template, tools and template arguments applied."""

    @abstractmethod
    def stream(self, request: GenerationRequest, *, deadline_s: float) -> AsyncGenerator[Chunk, None]:
        """Stream one generation; closing the stream aborts it. A refusal is raised before the first chunk."""

    @abstractmethod
    async def generate(self, request: GenerationRequest, *, deadline_s: float) -> Generation:
        """Run one generation to its end and measure it."""

    @abstractmethod
    async def embed(self, texts: list[str], model: str, *, deadline_s: float) -> list[list[float]]:
        """Return one vector a text from ``/v1/embeddings``."""

    @abstractmethod
    async def adapters(self, *, deadline_s: float) -> list[AdapterListing]:
        """Return the adapters that the engine lists."""

    @abstractmethod
    async def load_adapter(self, name: str, path: str, *, deadline_s: float) -> None:
        """Load an adapter; "already loaded" is success only when the engine lists the same path.

        Raises:
            RejectItemError: ``ADAPTER_UPDATES_OFF``, ``ADAPTER_PATH_DIFFERS`` or ``ENGINE_REFUSED``.
        """

    @abstractmethod
    async def unload_adapter(self, name: str, *, deadline_s: float) -> None:
        """Unload an adapter; one that is not loaded counts as unloaded."""

    @abstractmethod
    async def metrics(self, *, deadline_s: float) -> EngineMetrics:
        """Scrape and parse the metrics."""

    @abstractmethod
    async def reset_prefix_cache(self, *, deadline_s: float) -> bool:
        """Reset the prefix cache; False when the engine did not (busy, or no such endpoint)."""

    @abstractmethod
    async def is_paused(self, *, deadline_s: float) -> bool | None:
        """Say whether the engine is paused, which by default has emptied its cache; None where it does not tell."""

    @abstractmethod
    def kv_events(self) -> AsyncGenerator[KvEvent, None] | None:
        """Return the stream of KV events, which ends when it is closed, or None where the replica offers none."""

    def kv_contents(self) -> AsyncGenerator[KvEvent, None] | None:
        """Return the events that the engine still holds, ``current``, and those from now on; None: none are held.

        They tell what lies in the cache without asking for it. ``lost`` ends the stream, which raises
        ``RetryLaterError`` when nothing answers.
        """
        return None

    @abstractmethod
    async def aclose(self) -> None:
        """Release connections."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
