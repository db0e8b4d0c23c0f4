"""Traffic for the tuning benchmark: a real chat trace, and a service whose tenants each send one long system prompt.

The chat trace (Mooncake conversation) is real in every access. The service's arrivals are real (Azure, conversation);
which tenant asks, and how long its prompts are, is drawn by seed after what is published of such services: a tenth of
the tenants make most of the traffic, almost all reuse is of system prompts.
"""

import csv
import gzip
from datetime import datetime
from pathlib import Path

import numpy as np
import numpy.typing as npt
import orjson

from tests.benchmarks import harness
from warmup_tasks.replay.accesses import Accesses

TENANTS = 300
TENANT_EXPONENT = 1.1
SYSTEM_TOKENS = (512, 6144)
QUESTION_MEDIAN_TOKENS = 96
BLOCK_TOKENS = 64


def conversation() -> Accesses:
    """Return the chat trace, 512-token blocks."""
    with gzip.open(harness.data_file("mooncake/conversation_trace.jsonl.gz")) as lines:
        rows = [orjson.loads(line) for line in lines]
    return Accesses.of(
        [row["hash_ids"] for row in rows],
        [row["timestamp"] / 1000 for row in rows],
        block_tokens=512,
        prompt_tokens=[row["input_length"] for row in rows],
    )


def service(seed: int) -> Accesses:
    """Return the service's traffic: real arrivals, seeded tenants and prompts."""
    random = np.random.default_rng(seed)
    times = _arrivals(harness.data_file("azure_llm_2023/AzureLLMInferenceTrace_conv.csv"))
    weights = np.arange(1, TENANTS + 1) ** -TENANT_EXPONENT
    low, high = np.log(SYSTEM_TOKENS)
    system = np.exp(random.uniform(low, high, TENANTS)).astype(np.int64) // BLOCK_TOKENS
    tenants = random.choice(TENANTS, len(times), p=weights / weights.sum())
    questions = random.lognormal(np.log(QUESTION_MEDIAN_TOKENS), 0.8, len(times)).astype(np.int64)
    own = np.maximum(1, questions // BLOCK_TOKENS)
    lengths = system[tenants] + own
    starts = np.repeat(np.cumsum(lengths) - lengths, lengths)
    place = np.arange(lengths.sum()) - starts
    is_shared = place < np.repeat(system[tenants], lengths)
    shared = (np.repeat(tenants, lengths).astype(np.uint64) + np.uint64(1)) << np.uint64(32)
    names = np.where(
        is_shared, shared + place.astype(np.uint64), np.uint64(1 << 60) + np.arange(len(place), dtype=np.uint64)
    )
    return Accesses.of_arrays(
        names, lengths, times, block_tokens=BLOCK_TOKENS, prompt_tokens=system[tenants] * BLOCK_TOKENS + questions
    )


def _arrivals(path: Path) -> npt.NDArray[np.float64]:
    with path.open(encoding="utf-8") as lines:
        moments = [datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp() for row in csv.DictReader(lines)]
    times = np.sort(np.asarray(moments))
    return times - times[0]
