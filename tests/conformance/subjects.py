"""The engines that the suite runs against: the double and a real vLLM with a tiny model, of one size."""

import json
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from warmup_tasks.engines.base import Engine, Generation, GenerationRequest
from warmup_tasks.engines.connect import open_engine
from warmup_tasks.engines.double.faults import Faults
from warmup_tasks.engines.double.process import start_double
from warmup_tasks.fleet_file import ReplicaSpec
from warmup_tasks.items import PromptBody
from warmup_tasks.local.vllm_cpu import CONTEXT_TOKENS, MAX_LORA_RANK, make_model, start_vllm

MODEL = "conformance-model"
KEY, KEY_VARIABLE = "key-of-the-suite", "WARMUP_CONFORMANCE_KEY"
BLOCK_SIZE = 32
CAPACITY_TOKENS = 9600
DEADLINE_S = 60.0
ENGINES = Path(os.environ.get("WARMUP_ENGINE_CACHE") or Path(__file__).resolve().parents[2] / "out" / "engine")
WORDS = ("def", "class", "import", "return", "yield", "self", "open", "read", "write", "path", "line", "value")


@dataclass(frozen=True)
class Subject:
    """One running engine and what the suite needs to know of it."""

    replica: ReplicaSpec
    adapters: dict[str, Path]
    logprob_tolerance: float

    def open(self) -> Engine:
        """Return a client."""
        return open_engine(self.replica)


class Prompts:
    """Prompts that no other test sends: ids drawn from those that the engine itself gives for a text."""

    def __init__(self, alphabet: list[int], seed: str) -> None:
        self._alphabet = alphabet
        self._random = random.Random(seed)

    def ids(self, count: int) -> list[int]:
        """Return ``count`` token ids."""
        return self._random.choices(self._alphabet, k=count)

    def text(self, words: int) -> str:
        """Return a text of some words."""
        return " ".join(self._random.choices(WORDS, k=words))

    def salt(self) -> str:
        """Return a salt that nobody has used."""
        return f"{self._random.getrandbits(128):032x}"

    @classmethod
    async def of(cls, engine: Engine, seed: str) -> "Prompts":
        """Return the prompts of one test."""
        ids = await engine.tokenize(PromptBody(prompt=" ".join(WORDS)), MODEL, deadline_s=DEADLINE_S)
        return cls(sorted(set(ids)), seed)


@contextmanager
def double(folder: Path, faults: Faults | None = None) -> Iterator[Subject]:
    """Run a double whose cache, block size and limits are those of the real engine here."""
    endpoint = f"ipc://{folder}/kv-events"
    adapters = {name: peft_folder(folder / name, rank) for name, rank in (("a", 8), ("b", 8), ("high-rank", 16))}
    running = start_double(
        model=MODEL,
        api_key=KEY,
        developer_mode=True,
        block_size=BLOCK_SIZE,
        num_gpu_blocks=CAPACITY_TOKENS // BLOCK_SIZE,
        max_model_len=CONTEXT_TOKENS,
        max_lora_rank=MAX_LORA_RANK,
        kv_events_endpoint=endpoint,
        kv_events_replay_endpoint=f"{endpoint}-replay",
        faults=faults or Faults(),
    )
    with running:
        yield Subject(_replica(running.url, endpoint), adapters, logprob_tolerance=0.0)


@contextmanager
def real() -> Iterator[Subject]:
    """Run a real vLLM on the CPU."""
    model = make_model(ENGINES / "tiny-128x2")
    server = start_vllm(
        model,
        MODEL,
        ENGINES / "conformance.log",
        capacity_tokens=CAPACITY_TOKENS,
        has_kv_events=True,
        api_key=KEY,
    )
    names = {"a": "adapter-a", "b": "adapter-b", "high-rank": "adapter-rank16"}
    adapters = {name: model.adapters[folder] for name, folder in names.items()}
    with server:
        yield Subject(_replica(server.url, server.kv_events_endpoint), adapters, logprob_tolerance=0.05)


def peft_folder(folder: Path, rank: int) -> Path:
    """Write an adapter that has the files of PEFT and no weights to speak of."""
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": rank}))
    (folder / "adapter_model.safetensors").write_bytes(folder.name.encode())
    return folder


async def ask(
    engine: Engine,
    prompt: list[int] | PromptBody,
    *,
    model: str = MODEL,
    salt: str | None = None,
    max_tokens: int = 1,
    with_logprobs: bool = False,
) -> Generation:
    """Run one generation at temperature 0."""
    body = prompt if isinstance(prompt, PromptBody) else PromptBody(token_ids=prompt)
    request = GenerationRequest(body, model, max_tokens=max_tokens, cache_salt=salt, with_logprobs=with_logprobs)
    return await engine.generate(request, deadline_s=DEADLINE_S)


def are_answers_equal(one: Generation, other: Generation, tolerance: float) -> bool:
    """Say whether two answers are the same, near ties of their tokens allowed for."""
    for token, value, top, token_2, value_2 in zip(
        one.tokens, one.logprobs, one.top_logprobs, other.tokens, other.logprobs, strict=True
    ):
        if token != token_2:
            return abs(top.get(token_2, float("-inf")) - value) <= tolerance
        if abs(value - value_2) > tolerance:
            return False
    return True


def _replica(url: str, kv_events_endpoint: str | None) -> ReplicaSpec:
    return ReplicaSpec(
        name="subject",
        url=url,
        profile="small",
        model=MODEL,
        api_key_env=KEY_VARIABLE,
        kv_events_endpoint=kv_events_endpoint,
        kv_events_replay_endpoint=f"{kv_events_endpoint}-replay",
    )
