"""The flags of a reading are the fields of a run's form, beside ``--set``."""

import json
from pathlib import Path
from typing import Any

import orjson
import pytest
from typer.testing import CliRunner

from warmup_tasks.cli import app
from warmup_tasks.lake import Lake

ROW = {"timestamp": 0, "input_length": 1_024, "output_length": 5, "hash_ids": [1, 2]}
FLAGS = ["--tokens-per-block", "4", "--vocabulary-size", "32000"]
SETS = ["--set", "tokens_per_block=4", "--set", "vocabulary_size=32000"]


@pytest.fixture
def trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in (("LAKE", "lake"), ("REDIS_URL", "redis://127.0.0.1:1/0"), ("FLEET", "fleet.yaml")):
        monkeypatch.setenv(f"WARMUP_{name}", value if "://" in value else str(tmp_path / value))
    log = tmp_path / "trace.jsonl"
    log.write_bytes(orjson.dumps(ROW) + b"\n" + orjson.dumps({**ROW, "input_length": 4_096, "hash_ids": [*range(8)]}))
    return str(log)


@pytest.mark.parametrize("options", [FLAGS, SETS])
def test_block_hashes_become_prompts(trace: str, options: list[str], tmp_path: Path) -> None:
    found = invoke("extract", "--log", trace, "--format", "mooncake", *options)
    assert (found["requests_usable"], found["usable_by_use"]["prefix"], found["prompts_too_long"]) == (2, 2, 0)
    (day,) = found["days"]
    bodies = Lake(str(tmp_path / "lake")).read(f"requests/{day}", "requests")["body_json"].to_pylist()
    assert sorted(len(orjson.loads(body)["token_ids"]) for body in bodies) == [8, 32]


def test_too_long_ones_are_counted(trace: str) -> None:
    found = invoke("extract", "--log", trace, *FLAGS, "--max-prompt-tokens", "16")
    assert (found["usable_by_use"]["prefix"], found["prompts_too_long"]) == (1, 1)


def test_inspection_takes_them_too(trace: str) -> None:
    assert "prompts_too_long" in json.dumps(invoke("inspect", trace, *FLAGS))


def test_a_number_that_cannot_be_is_refused_by_its_name(trace: str) -> None:
    result = CliRunner().invoke(app, ["extract", "--log", trace, "--tokens-per-block", "0"])
    assert result.exit_code == 1
    assert "tokens_per_block" in result.output


def invoke(*arguments: str) -> dict[str, Any]:
    result = CliRunner().invoke(app, [*arguments, "--json"])
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found
