"""A whole night as a user runs it: the command in a process of its own, Airflow, Redis, engines and agent for real."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from warmup_tasks.lake import Lake
from warmup_tasks.sources.sample_log import DEFAULT_AS_OF, write_sample_log

REPOSITORY = Path(__file__).resolve().parents[2]
DEADLINE_S = 900


def run_night(out: Path, *options: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "warmup_tasks.cli", "run", "--json", "--out", str(out), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, cwd=REPOSITORY, check=False)
    assert done.returncode == 0, done.stderr[-4000:] + done.stdout[-2000:]
    printed: dict[str, Any] = json.loads(done.stdout)
    assert printed == json.loads((out / "run" / "summary.json").read_text())
    return printed


def lake_of(out: Path) -> Lake:
    (lake,) = (out / "lake").iterdir()
    return Lake(str(lake))


def pairs_of(out: Path, summary: dict[str, Any], min_tokens: int) -> list[tuple[float, float]]:
    """(cold, warm) TTFT in ms of sampled prefixes with at least so many tokens."""
    lake, pairs = lake_of(out), []
    for profile in {replica["profile"] for replica in summary["replicas"]}:
        partition = f"{summary['run_id']}.{profile}"
        tokens = {
            (r["item_id"], r["replica"]): r["prompt_tokens"]
            for r in lake.read(f"twins/{partition}", "twins").to_pylist()
        }
        for row in lake.read(f"evidence/{partition}", "evidence").to_pylist():
            is_pair = row["ttft_cold_ms"] is not None and row["ttft_warm_ms"] is not None
            if is_pair and tokens[row["item_id"], row["replica"]] >= min_tokens:
                pairs.append((row["ttft_cold_ms"], row["ttft_warm_ms"]))
    return pairs


def median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def process_ids(out: Path) -> list[str]:
    """Processes whose command line names this run's folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if str(out).encode() in line:
                found.append(entry.name)
    return found


@pytest.fixture(scope="module")
def small_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("log")
    write_sample_log(folder, seed=3, days=2, scale=0.25, end=DEFAULT_AS_OF)
    return folder


@pytest.mark.airflow
def test_a_night_on_the_double_is_whole_and_idempotent(tmp_path: Path, small_log: Path) -> None:
    options = ("--log", str(small_log), "--as-of", DEFAULT_AS_OF.isoformat())
    first = run_night(tmp_path, *options)
    items, kinds = first["items"], first["items"]["by_kind"]
    assert set(kinds) == {"embedding", "adapter", "kv_prefix", "response", "qa_pair"}
    assert all(kinds[kind]["planned"] > 0 for kind in kinds)
    assert items["ready"] == items["planned"] == items["warmed"] == items["validated"]
    assert items["rejected"] == items["skipped"] == items["unverified"] == 0
    assert first["rows_quarantined"] > 0
    assert first["requests_read"] == sum(
        first[name] for name in ("requests_usable", "rows_quarantined", "rows_duplicate")
    ) + _other_records(tmp_path, first)
    assert {replica["profile"] for replica in first["replicas"]} == {"large", "small"}
    assert first["ttft_ms"]["warm"]["p50"] < first["ttft_ms"]["cold"]["p50"] / 2
    assert first["block_hit_ratio"]["warm"] > first["block_hit_ratio"]["cold"] > 0
    tokens = first["prefill_tokens"]
    assert tokens["unique"] <= tokens["warming"]
    assert tokens["validation"] > 0
    assert first["engine"]["name"] == "warmup-double"
    assert (tmp_path / "run" / "report.html").stat().st_size > 10_000
    assert process_ids(tmp_path) == []

    plans = lake_of(tmp_path).latest("plan", first["run_id"])
    again = run_night(tmp_path, *options)
    assert (again["run_id"], again["items"]) == (first["run_id"], items)
    assert again["task_count"] == first["task_count"]
    assert lake_of(tmp_path).latest("requests", "2026-11-26") is not None
    assert plans is not None


def _other_records(out: Path, summary: dict[str, Any]) -> int:
    account = lake_of(out).meta(f"extractions/{summary['run_id']}")
    return int(account["not_a_request"]) + int(account["feedback_rows"])


@pytest.mark.airflow
def test_the_number_of_tasks_does_not_depend_on_the_items(tmp_path: Path, data_dir: Path) -> None:
    summary = run_night(tmp_path, "--log", str(data_dir / "agent_text" / "magagent.jsonl.gz"))
    assert summary["requests_read"] == 746
    assert summary["items"]["ready"] > 0
    assert summary["task_count"] == 40


@pytest.mark.airflow
@pytest.mark.real_engine
def test_a_night_on_the_real_engine_halves_the_time_to_first_token(tmp_path: Path) -> None:
    summary = run_night(tmp_path, "--engine", "vllm")
    assert summary["engine"]["name"] == "vllm"
    assert summary["items"]["ready"] == summary["items"]["planned"] > 0
    pairs = pairs_of(tmp_path, summary, min_tokens=1000)
    assert len(pairs) >= 50
    assert median([warm for _, warm in pairs]) <= 0.5 * median([cold for cold, _ in pairs])
    assert summary["block_hit_ratio"]["warm"] > summary["block_hit_ratio"]["cold"]
