"""A whole night as a user runs it: a command in a process of its own; Airflow, Redis, engines and agent for real."""

import os
from pathlib import Path

import pytest

from tests.integration.conftest import Night, Nights, make


def pairs_of(night: Night, min_tokens: int) -> list[tuple[float, float]]:
    """(cold, warm) TTFT in ms of the sampled prefixes with at least so many tokens."""
    pairs = []
    for profile in {replica["profile"] for replica in night.summary["replicas"]}:
        partition = f"{night.summary['run_id']}.{profile}"
        twins = night.lake.read(f"twins/{partition}", "twins").to_pylist()
        tokens = {(row["item_id"], row["replica"]): row["prompt_tokens"] for row in twins}
        for row in night.lake.read(f"evidence/{partition}", "evidence").to_pylist():
            is_pair = row["ttft_cold_ms"] is not None and row["ttft_warm_ms"] is not None
            if is_pair and tokens[row["item_id"], row["replica"]] >= min_tokens:
                pairs.append((row["ttft_cold_ms"], row["ttft_warm_ms"]))
    return pairs


def median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def process_ids(out: Path) -> list[str]:
    """Processes whose command line names this night's folder."""
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


@pytest.mark.airflow
def test_every_figure_of_a_night_on_the_double(nights: Nights) -> None:
    night = nights("make run")
    summary, items, kinds = night.summary, night.summary["items"], night.summary["items"]["by_kind"]
    assert set(kinds) == {"embedding", "adapter", "kv_prefix", "response", "qa_pair"}
    assert all(kinds[kind]["planned"] > 0 for kind in kinds)
    assert items["planned"] == items["warmed"] == items["validated"] == items["ready"] + night.refused_by_timing
    assert items["rejected"] == night.refused_by_timing
    assert items["skipped"] == items["unverified"] == 0
    account = night.lake.meta(f"extractions/{summary['run_id']}")
    other = account["not_a_request"] + account["feedback_rows"]
    read = summary["requests_usable"] + summary["rows_quarantined"] + summary["rows_duplicate"] + other
    assert summary["requests_read"] == read
    assert summary["rows_quarantined"] > 0
    assert {replica["profile"] for replica in summary["replicas"]} == {"large", "small"}
    assert summary["ttft_ms"]["warm"]["p50"] < summary["ttft_ms"]["cold"]["p50"] / 2
    assert summary["block_hit_ratio"]["warm"] > summary["block_hit_ratio"]["cold"] > 0
    assert 0 < summary["prefill_tokens"]["unique"] <= summary["prefill_tokens"]["warming"]
    assert summary["prefill_tokens"]["validation"] > 0
    assert summary["engine"]["name"] == "warmup-double"
    assert sum(summary["stages_s"].values()) > 0
    assert process_ids(night.out) == []


@pytest.mark.airflow
def test_a_second_night_changes_nothing(nights: Nights, logs: tuple[Path, Path]) -> None:
    first = nights("make run LOG=/path/to/logs")
    versions = {name: first.lake.latest("requests", name) for name in first.lake.partitions("requests")}
    again = make(f"make run LOG={logs[0]}", first.out)
    assert again.summary["run_id"] == first.summary["run_id"]
    for name in ("planned", "refused", "held_out", "warmed", "validated", "skipped", "unverified"):
        assert again.summary["items"][name] == first.summary["items"][name], name
    for night in (first, again):
        assert night.summary["items"]["ready"] + night.refused_by_timing == night.summary["items"]["planned"]
    assert again.summary["task_count"] == first.summary["task_count"]
    assert {name: again.lake.latest("requests", name) for name in again.lake.partitions("requests")} == versions


@pytest.mark.airflow
def test_real_agent_prompts_make_the_same_tasks(nights: Nights, data_dir: Path) -> None:
    night = nights(f"make run LOG={data_dir / 'agent_text' / 'magagent.jsonl.gz'}")
    assert night.summary["requests_read"] == 746
    assert night.summary["items"]["ready"] + night.refused_by_timing == night.summary["items"]["planned"] > 0
    assert night.summary["task_count"] == nights("make run").summary["task_count"]


@pytest.mark.airflow
@pytest.mark.real_engine
def test_the_real_engine_answers_in_half_the_time(nights: Nights) -> None:
    night = nights("make run ENGINE=vllm")
    assert night.summary["engine"]["name"] == "vllm"
    pairs = pairs_of(night, min_tokens=1000)
    assert len(pairs) >= 50
    assert median([warm for _, warm in pairs]) <= 0.5 * median([cold for cold, _ in pairs])
    assert night.summary["block_hit_ratio"]["warm"] > night.summary["block_hit_ratio"]["cold"]
