"""Inspecting a log: what it holds, what is wrong with it first, and what to change where it is written."""

import io
from pathlib import Path

import orjson
import pytest
from rich.console import Console

from warmup_tasks.errors import ConfigurationError
from warmup_tasks.reporting.inspection import print_inspection
from warmup_tasks.sources.base import Request
from warmup_tasks.sources.hash_prompts import HashPrompts
from warmup_tasks.sources.inspection import GENERAL_HINTS, PROBLEMS_PER_REASON, Inspection, inspect
from warmup_tasks.sources.options import ReadOptions
from warmup_tasks.sources.registry import SOURCES

SECRET = "xylophone"


def call(number: int, **changes: object) -> bytes:
    record = {
        "time": 1_795_658_400 + number, "request_id": f"r{number}", "tenant": "acme", "status": 200, "ttft_ms": 9,
        "request": {"model": "demo", "messages": [{"role": "user", "content": f"{SECRET} {number}"}]},
        "response": {
            "choices": [{"message": {"content": SECRET}}],
            "usage": {"prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": 0}},
        },
    }  # fmt: skip
    return orjson.dumps({name: value for name, value in {**record, **changes}.items() if value is not None})


def log(path: Path, *lines: bytes) -> str:
    path.write_bytes(b"\n".join(lines) + b"\n")
    return str(path)


def advised(inspection: Inspection) -> dict[str, tuple[int, int]]:
    return {advice.field: (advice.missing, advice.requests) for advice in inspection.advice}


def printed(inspection: Inspection) -> str:
    shown = io.StringIO()
    print_inspection(inspection, Console(width=200, file=shown))
    return shown.getvalue()


def test_a_log_that_says_everything_needs_no_advice(tmp_path: Path) -> None:
    found = inspect(log(tmp_path / "a.jsonl", *map(call, range(10))))
    assert (found.account.requests_usable, found.problems, found.advice) == (10, [], [])


def test_what_requests_lack_is_counted_with_what_to_change(tmp_path: Path) -> None:
    lines = [call(n, tenant=None, response=None if n < 6 else {}) for n in range(10)] + [call(99, status=None)]
    found = inspect(log(tmp_path / "a.jsonl", *lines))
    assert advised(found) == {
        "tenant": (10, 11), "cached_tokens": (10, 11), "input_tokens": (10, 11), "answer_text": (10, 11),
        "status": (1, 11),
    }  # fmt: skip
    assert [advice.field for advice in found.advice] == sorted(advised(found), key=list(GENERAL_HINTS).index)
    assert "--enable-prompt-tokens-details" in next(a.hint for a in found.advice if a.field == "cached_tokens")


def test_a_field_that_few_requests_lack_is_not_worth_a_change(tmp_path: Path) -> None:
    assert advised(inspect(log(tmp_path / "a.jsonl", call(0, tenant=None), *map(call, range(1, 30))))) == {}


def test_failed_requests_are_not_missing_their_answer(tmp_path: Path) -> None:
    lines = [call(n, status=500, response={"error": {}, "usage": {"prompt_tokens": 5}}) for n in range(4)]
    assert "answer_text" not in advised(inspect(log(tmp_path / "a.jsonl", *lines)))


def test_the_first_problems_of_each_reason_are_shown_without_content(tmp_path: Path) -> None:
    bad = [call(n, status="never", tenant=SECRET, latency_ms=SECRET) for n in range(20)]
    found = inspect(log(tmp_path / "a.jsonl", *map(call, range(20)), *bad, b'{"cut', b"\xff"))
    assert found.account.rows_quarantined == 22
    assert [(problem.line, problem.reason) for problem in found.problems] == [
        *((line, "a field has the wrong type") for line in range(21, 21 + PROBLEMS_PER_REASON)),
        (41, "not JSON"),
        (42, "invalid UTF-8"),
    ]
    assert "latency_ms" in found.problems[0].detail
    text = printed(found)
    assert SECRET not in text
    assert SECRET not in found.model_dump_json()
    assert "a.jsonl" in text


def test_the_formats_hints_come_before_the_general_ones(tmp_path: Path, data_dir: Path) -> None:
    line = "INFO 11-26 02:00:00 [request_logger.py:65] Received request cmpl-1-0: params: x, lora_request: None."
    found = inspect(log(tmp_path / "vllm.log", line.encode()))
    hints = {advice.field: advice.hint for advice in found.advice}
    assert "VLLM_LOGGING_LEVEL=DEBUG" in hints["prompt"]
    assert "--enable-log-outputs" in hints["answer_text"]
    trace = inspect(str(data_dir / "azure_llm_2023"))
    assert [(advice.field, advice.missing) for advice in trace.advice] == [("prompt", 28_185)]  # nobody can change it
    assert "nothing is warmed from it" in printed(trace)


def test_a_real_log_without_requests_is_shown_with_its_hit_rates(data_dir: Path) -> None:
    text = printed(inspect(str(data_dir / "vllm_server_log")))
    assert "65 lines tell the prefix cache's hit rate: 0 % first, 88.7 % last" in text
    assert "a vLLM server's line head" in text


def test_options_reach_the_formats(tmp_path: Path) -> None:
    row = {"timestamp": 1, "input_length": 600, "output_length": 1, "hash_ids": [1, 2]}
    trace = log(tmp_path / "t.jsonl", orjson.dumps(row))
    assert advised(inspect(trace)) == {"prompt": (1, 1)}
    assert advised(inspect(trace, options=ReadOptions(hash_prompts=HashPrompts(32, 32_000)))) == {}


def test_nothing_is_kept_and_nothing_known_is_said(tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ConfigurationError, match="no file of"):
        inspect(log(tmp_path / "a.txt", b"hello"))
    assert sorted(tmp_path.rglob("*")) == [*before, tmp_path / "a.txt"]


def test_hints_name_what_a_request_can_lack() -> None:
    for source in SOURCES:
        assert set(source.hints) <= {*GENERAL_HINTS, *Request.__dataclass_fields__}, source.name
