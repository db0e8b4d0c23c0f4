"""A double for each module that wants one, and adapter folders as PEFT writes them."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from warmup_tasks.engines.double.process import start_double


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    """A double that does not wait, in developer mode."""
    with (
        start_double(developer_mode=True, time_scale=0, max_lora_rank=8, num_gpu_blocks=600) as double,
        httpx.Client(base_url=double.url, timeout=10) as client,
    ):
        yield client


@pytest.fixture(autouse=True)
def _in_good_order(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "client" in request.fixturenames:
        request.getfixturevalue("client").delete("/double/faults")


@pytest.fixture
def write_adapter(tmp_path: Path) -> Callable[..., str]:
    """Return a function that writes a PEFT folder and returns its path."""

    def write(name: str, weights: bytes = b"weights", rank: int = 8) -> str:
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": rank}))
        (folder / "adapter_model.safetensors").write_bytes(weights)
        return str(folder)

    return write
