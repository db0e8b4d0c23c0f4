"""The public conversation trace, as it stands in its file and as accesses."""

import gzip

import orjson
import pytest

from warmup_tasks.replay.accesses import Accesses


@pytest.fixture(scope="session")
def conversation_trace(data_dir):
    """Arrival in ms, prompt tokens and block hashes of each request, in the order of the file."""
    path = data_dir / "mooncake" / "conversation_trace.jsonl.gz"
    with gzip.open(path) as lines:
        return [orjson.loads(line) for line in lines]


@pytest.fixture(scope="session")
def conversations(conversation_trace):
    rows = conversation_trace
    return Accesses.of(
        [row["hash_ids"] for row in rows],
        [row["timestamp"] / 1000 for row in rows],
        block_tokens=512,
        prompt_tokens=[row["input_length"] for row in rows],
    )
