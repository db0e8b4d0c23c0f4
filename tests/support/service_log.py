"""The log of a small service, as rows of the lake: a dozen system prompts, short questions, steady arrivals."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

import numpy as np

from warmup_tasks.items import ReplicaState
from warmup_tasks.lake.schemas import REQUESTS

BLOCK = 16
PROMPT_BLOCKS = 40


def service_requests(seconds: int, per_s: float, prompts: int, seed: int = 3) -> tuple[Any, list[list[int]]]:
    """Times and block names: each request is a shared prompt of 40 blocks and 2 blocks of its own."""
    random = np.random.default_rng(seed)
    count = int(seconds * per_s)
    times = np.sort(random.uniform(0, seconds, count))
    chosen = random.integers(0, prompts, count)
    own = iter(range(1 << 40, 1 << 41))
    names = [
        [(int(prompt) + 1) * 1000 + place for place in range(PROMPT_BLOCKS)] + [next(own), next(own)]
        for prompt in chosen
    ]
    return times, names


def rows_of(
    times: Iterable[float],
    names: Sequence[list[int]],
    *,
    begin: datetime,
    model: str = "m",
    adapter: str | None = None,
    request_type: str = "chat",
    prefix: str = "r",
) -> list[dict[str, Any]]:
    """Rows of ``requests/<day>``."""
    empty = dict.fromkeys(REQUESTS.names)
    return [
        {
            **empty,
            "schema_version": 1,
            "request_id": f"{prefix}{number}",
            "time": begin + timedelta(seconds=float(moment)),
            "model": model,
            "adapter": adapter,
            "request_type": request_type,
            "is_truncated": False,
            "block_hashes": blocks,
            "block_tokens": BLOCK,
            "input_tokens": len(blocks) * BLOCK,
            "source_file": "log",
            "source_line": number,
        }
        for number, (moment, blocks) in enumerate(zip(times, names, strict=True))
    ]


def states(count: int = 1) -> list[ReplicaState]:
    """What the survey says of the model's replicas."""
    return [
        ReplicaState(
            run_id="r", replica=f"m-{number}", profile="gpu", model="m", engine="vllm", version="0", epoch="e",
            identity_digest="0" * 64, contradictions=[], block_size=BLOCK, capacity_tokens=100_000, max_model_len=8192,
            has_usage_details=True, has_runtime_adapters=True, base_ms=20.0, prefill_ms_per_token=0.3, probe_tokens=0,
            notes=[],
        )
        for number in range(count)
    ]  # fmt: skip
