"""vLLM server logs: three forms of request lines, prompts exact or never warmed, clocks without a year.

Lines are made with vLLM's own format strings: ``vllm/entrypoints/serve/utils/request_logger.py`` (0.32),
``vllm/entrypoints/logger.py`` (0.6 to 0.11) and ``vllm/engine/async_llm_engine.py`` (0.4); the heads are those of
``vllm/logger.py``.
"""

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from warmup_tasks.errors import ConfigurationError
from warmup_tasks.lake import Lake
from warmup_tasks.sources import ExtractionSummary, extract, vllm_lines
from warmup_tasks.sources.faults import Fault
from warmup_tasks.sources.options import ReadOptions
from warmup_tasks.sources.vllm_limit import find_limit

OPTIONS = ReadOptions(epoch=datetime(2026, 11, 1, tzinfo=UTC))
PARAMS = (
    "SamplingParams(n=1, presence_penalty=0.0, stop=['\\n', 'lora_request: None.'], max_tokens=16, extra_args=None)"
)
ADAPTER = "LoRARequest(lora_name='billing-v3', lora_int_id=1, lora_path='/adapters/billing', base_model_name=None)"
ARGS = (
    "non-default args: {'model_tag': 'org/demo', 'model': 'org/demo', 'served_model_name': ['demo'], 'max_log_len': %d}"
)
TEXT = '<|user|>\nWhat\'s "open"?\\ \t\x07 é 漢 🙂<|assistant|>'
IDS = [1, 733, 16289, 28793]


def line(message: str, level: str = "INFO", second: int = 0, head: str = "(APIServer pid=23283) ") -> str:
    return f"{head}{level} 11-26 02:00:{second:02d} [request_logger.py:65] {message}"


def received(request_id: str, adapter: str | None = None, params: str = PARAMS) -> str:
    return line("Received request %s: params: %s, lora_request: %s." % (request_id, params, adapter))  # noqa: UP031


def details(request_id: str, prompt: str | None, ids: list[int] | None) -> str:
    text = "Request %s details: prompt: %r, prompt_token_ids: %s, prompt_embeds shape: %s."
    return line(text % (request_id, prompt, ids, None), "DEBUG")


def body(request_id: str, value: dict[str, Any], limit: int | None = None) -> str:
    return line("Request %s JSON body: %s" % (request_id, orjson.dumps(value).decode()[:limit]), "DEBUG")  # noqa: UP031


def answered(request_id: str, text: str, finish: str = "stop", stream: str = "") -> str:
    return line("Generated response %s%s: output: %r, finish_reason: %s" % (request_id, stream, text, finish))  # noqa: UP031


def read(tmp_path: Path, *lines: str | bytes, options: ReadOptions = OPTIONS, end: bytes = b"\n") -> ExtractionSummary:
    data = b"\n".join(part if isinstance(part, bytes) else part.encode() for part in lines) + end
    (tmp_path / "vllm.log").write_bytes(data)
    summary = extract(Lake(str(tmp_path / "lake")), str(tmp_path / "vllm.log"), "vllm-log", options=options)
    parts = (summary.requests_usable, summary.feedback_rows, summary.rows_quarantined, summary.duplicates)
    assert summary.requests_read == sum(parts) + summary.not_a_request
    return summary


def rows(tmp_path: Path) -> list[dict[str, Any]]:
    lake = Lake(str(tmp_path / "lake"))
    found = [r for day in lake.partitions("requests") for r in lake.read(f"requests/{day}", "requests").to_pylist()]
    return sorted(found, key=lambda row: str(row["request_id"]))


def prompt_of(row: dict[str, Any]) -> Any:
    return orjson.loads(row["body_json"]) if row["body_json"] else None


def test_a_real_log_without_request_lines_says_which_log_level_brings_them(tmp_path: Path, data_dir: Path) -> None:
    summary = extract(Lake(str(tmp_path)), str(data_dir / "vllm_server_log"))
    (log,) = [read for read in summary.files if read.file == "vllm.log"]
    assert (log.format, log.records) == ("vllm-log", 728)
    assert (summary.requests_usable, summary.rows_quarantined) == (0, 0)
    assert summary.not_a_request_by_ground["prefix cache statistics"] == 65
    assert summary.not_a_request == 728
    assert log.notes[0] == "65 lines tell the prefix cache's hit rate: 0 % first, 88.7 % last"
    assert "VLLM_LOGGING_LEVEL=DEBUG" in log.notes[1]
    assert "--enable-log-requests" in log.notes[1]


def test_info_lines_without_prompt_count_for_timing_and_say_what_is_missing(tmp_path: Path) -> None:
    pooling = "PoolingParams(dimensions=None)"
    summary = read(
        tmp_path,
        line(ARGS % 0).replace(", 'max_log_len': 0", ""),
        received("chatcmpl-a"),
        received("cmpl-b-0", ADAPTER),
        received("embd-c-0", params=pooling),
    )
    assert summary.usable_by_use == {"prefix": 0, "embedding": 0, "qa": 0, "timing": 3}
    assert [(r["request_id"], r["request_type"], r["adapter"], r["model"]) for r in rows(tmp_path)] == [
        ("chatcmpl-a", "chat", None, "demo"),
        ("cmpl-b-0", "completion", "billing-v3", "demo"),
        ("embd-c-0", "embedding", None, "demo"),
    ]
    (note,) = summary.files[0].notes
    assert note.startswith("3 of 3 requests have no prompt and count for timing only: ")
    assert "VLLM_LOGGING_LEVEL=DEBUG" in note


def test_debug_lines_give_the_prompt_that_the_engine_got(tmp_path: Path) -> None:
    summary = read(
        tmp_path,
        details("chatcmpl-a", TEXT, IDS),
        details("cmpl-b-0", TEXT, IDS),
        received("cmpl-b-0", ADAPTER),
        received("chatcmpl-a"),
        details("cmpl-c-0", None, IDS),
        received("cmpl-c-0"),
    )
    assert summary.usable_by_use == {"prefix": 3, "embedding": 3, "qa": 0, "timing": 3}
    chat, completion, tokens = rows(tmp_path)
    assert prompt_of(chat) == {"token_ids": IDS}  # rendered text would get a second beginning
    assert prompt_of(completion) == {"prompt": TEXT}
    assert prompt_of(tokens) == {"token_ids": IDS}
    assert (chat["adapter"], completion["adapter"]) == (None, "billing-v3")
    assert {row["input_tokens"] for row in (chat, completion, tokens)} == {4}
    assert not any(row["is_truncated"] for row in (chat, completion, tokens))
    assert chat["time"] == datetime(2026, 11, 26, 2, tzinfo=UTC)


def test_a_json_body_gives_the_request_as_it_was_sent(tmp_path: Path) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"content": "Hi", "role": "user"}]
    sent = {
        "messages": messages, "model": "demo", "tools": [{"type": "function", "function": {"name": "f"}}],
        "chat_template_kwargs": {"enable_thinking": False}, "cache_salt": "5a17", "user": "u-7",
    }  # fmt: skip
    read(tmp_path, body("9f3c", sent), details("chatcmpl-9f3c", TEXT, IDS), received("chatcmpl-9f3c"))
    (row,) = rows(tmp_path)
    assert list(prompt_of(row)) == ["messages", "tools", "template_args"]
    assert orjson.dumps(prompt_of(row)["messages"]) == orjson.dumps(messages)
    assert (row["cache_salt"], row["tenant"], row["model"], row["input_tokens"]) == ("5a17", "u-7", "demo", 4)


OLDER = (
    "Received request %s: prompt: %r, params: %s, prompt_token_ids: %s, prompt_embeds shape: None, lora_request: %s.",
    "Received request %s: prompt: %r, params: %s, prompt_token_ids: %s, lora_request: %s, prompt_adapter_request: 0.",
    "Received request %s: prompt: %r, sampling_params: %s, prompt_token_ids: %s, lora_request: %s.",
)


@pytest.mark.parametrize("form", OLDER)
def test_older_servers_told_the_prompt_at_info(tmp_path: Path, form: str) -> None:
    head = "INFO 11-26 02:00:00 logger.py:37] "
    read(
        tmp_path,
        head + form % ("cmpl-1-0", TEXT, PARAMS, IDS, ADAPTER),
        head + form % ("cmpl-2-0", "x", PARAMS, None, None),
    )
    first, second = rows(tmp_path)
    assert (prompt_of(first), first["adapter"], first["input_tokens"]) == ({"prompt": TEXT}, "billing-v3", 4)
    assert (prompt_of(second), second["adapter"], second["input_tokens"]) == ({"prompt": "x"}, None, None)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.text(max_size=60) | st.sampled_from([f"', prompt_token_ids: [9], lora_request: {ADAPTER}.", "\\' \\", "None"])
)
def test_any_prompt_comes_out_as_it_went_in(prompt: str) -> None:
    for message in (OLDER[0] % ("r", prompt, PARAMS, IDS, None), "Received request r: prompt: %r, params: x" % prompt):  # noqa: UP031
        found = vllm_lines.request(vllm_lines.take_apart(line(message)).message)
        assert found is not None
        assert vllm_lines.sent(found["rest"]).prompt == prompt
    assert vllm_lines.sent(found["rest"]).token_ids is None


def test_words_in_a_prompt_are_not_taken_for_those_of_the_server(tmp_path: Path) -> None:
    prompt = f"', params: x, prompt_token_ids: [9], lora_request: {ADAPTER}."
    read(
        tmp_path,
        line(OLDER[0] % ("cmpl-1-0", prompt, PARAMS, IDS, None)),
        line(OLDER[1] % ("r2", prompt, "x", [7], None)),
    )
    assert [(prompt_of(row), row["adapter"], row["input_tokens"]) for row in rows(tmp_path)] == [
        ({"prompt": prompt}, None, 4),
        ({"prompt": prompt}, None, 1),
    ]


# Truncation: never warm a truncated prompt.


def long_text(length: int, letter: str = "a") -> str:
    return (letter + "bcd efg. ") * (length // 9 + 1)


def cut_rows(tmp_path: Path) -> dict[str, bool]:
    return {row["request_id"]: row["is_truncated"] for row in rows(tmp_path)}


def test_the_servers_arguments_tell_the_limit(tmp_path: Path) -> None:
    cut, whole = long_text(200)[:37], "short"
    lines = [line(ARGS % 37)]
    for name, text, ids in (("a", cut, [*range(37)]), ("b", whole, [1, 2]), ("c", cut, [1, 2, 3])):
        lines += [details(f"cmpl-{name}", text, ids), received(f"cmpl-{name}")]
    summary = read(tmp_path, *lines)
    assert cut_rows(tmp_path) == {"cmpl-a": True, "cmpl-b": False, "cmpl-c": False}
    assert prompt_of(rows(tmp_path)[2]) == {"token_ids": [1, 2, 3]}  # the text is cut, its token ids are not
    assert summary.usable_by_use["prefix"] == summary.usable_by_use["embedding"] == 2
    assert rows(tmp_path)[0]["input_tokens"] is None
    assert "1 prompts are cut to 37 characters or token ids" in summary.files[0].notes[0]
    namespace = (
        "vLLM API server version 0.6.3, args: Namespace(model='org/demo', served_model_name=None, max_log_len=37)"
    )
    assert find_limit([line(namespace)]) == (37, "the server's arguments say so", "org/demo")


def test_a_json_body_that_ends_too_early_tells_the_limit(tmp_path: Path) -> None:
    sent = {"messages": [{"role": "user", "content": long_text(90)}], "model": "demo"}
    read(
        tmp_path,
        body("a", sent, limit=61),
        details("chatcmpl-a", long_text(90)[:61], [*range(61)]),
        received("chatcmpl-a"),
        body("b", {"model": "demo"}, limit=61),
        details("chatcmpl-b", "hello", [1, 2]),
        received("chatcmpl-b"),
    )
    assert cut_rows(tmp_path) == {"chatcmpl-a": True, "chatcmpl-b": False}


def test_text_and_token_ids_that_end_together_tell_the_limit(tmp_path: Path) -> None:
    read(
        tmp_path,
        details("cmpl-a", long_text(90)[:61], [*range(61)]),
        received("cmpl-a"),
        details("cmpl-b", "hello, how are you?", [1, 2, 3, 4]),
        received("cmpl-b"),
    )
    assert cut_rows(tmp_path) == {"cmpl-a": True, "cmpl-b": False}


def test_several_prompts_that_end_at_a_round_number_tell_the_limit(tmp_path: Path) -> None:
    form = OLDER[2]
    lines = [form % (f"cmpl-{n}", long_text(300, "xyz"[n])[:100], PARAMS, None, None) for n in range(3)]
    read(tmp_path, *map(line, lines), line(form % ("cmpl-9", "short", PARAMS, None, None)))
    assert cut_rows(tmp_path) == {"cmpl-0": True, "cmpl-1": True, "cmpl-2": True, "cmpl-9": False}


def test_prompts_that_happen_to_be_equally_long_are_not_taken_for_cut(tmp_path: Path) -> None:
    texts = ["What is 11 + 11, please, my friend?", "What is 12 + 12, please, my friend?"]
    lines = [details(f"cmpl-{n}", text, [1, 2, 3, 4, 5, n]) for n, text in enumerate(texts)]
    read(tmp_path, *lines, received("cmpl-0"), received("cmpl-1"))
    assert cut_rows(tmp_path) == {"cmpl-0": False, "cmpl-1": False}


def test_one_prompt_that_is_asked_twice_and_what_goes_on_longer_tell_no_limit(tmp_path: Path) -> None:
    text = long_text(300)[:100]
    again = [part for n in range(3) for part in (details(f"cmpl-{n}", text, [1, 2]), received(f"cmpl-{n}"))]
    assert find_limit(again).characters is None
    others = [details("cmpl-3", long_text(300, "x")[:100], [1, 2]), received("cmpl-3")]
    assert find_limit(again + others).characters == 100
    assert find_limit([*again, *others, body("b", {"model": long_text(200)})]).characters is None
    assert find_limit([*again, *others, details("cmpl-4", "b" * 101, None)]).characters is None


def test_the_systems_own_tokenize_calls_are_no_requests(tmp_path: Path) -> None:
    call = received("tokenize-af02", params="None")
    summary = read(tmp_path, body("N/A", {"model": "demo"}), details("tokenize-af02", TEXT, IDS), call)
    assert (summary.requests_usable, summary.not_a_request_by_ground["call of tokenize"]) == (0, 1)


# Answers.


def test_logged_answers_are_joined_and_say_that_the_request_succeeded(tmp_path: Path) -> None:
    names = ("chatcmpl-a", "cmpl-b-0", "chatcmpl-c", "chatcmpl-d")
    lines = [part for name in names for part in (details(name, f"Question {name}?", IDS), received(name))]
    summary = read(
        tmp_path,
        *lines,
        answered("chatcmpl-a", "It's\nfine.", "streaming_complete", " (streaming complete)"),
        answered("cmpl-b", " 42"),
        answered("chatcmpl-c", "half", "abort"),
        answered("chatcmpl-d", "[tool_calls: f({})]", "tool_calls"),
        answered("chatcmpl-x", "nobody asked"),
    )
    assert [(row["answer_text"], row["status"]) for row in rows(tmp_path)] == [
        ("It's\nfine.", 200), ("half", 499), (None, 200), (" 42", 200),
    ]  # fmt: skip
    assert summary.usable_by_use["qa"] == 2
    assert summary.not_a_request_by_ground == {"an answer, read with its request": 4, "an answer without request": 1}


def test_more_requests_under_way_than_are_kept_lose_nothing(tmp_path: Path) -> None:
    lines = [received(f"cmpl-{n:04d}-0") for n in range(2_500)]
    assert read(tmp_path, *lines, answered("cmpl-0000-0", "late")).requests_usable == 2_500


def test_a_prompt_whose_request_line_is_missing_is_not_used_since_its_adapter_is_unknown(tmp_path: Path) -> None:
    summary = read(tmp_path, details("cmpl-a-0", TEXT, IDS), received("cmpl-b-0"))
    assert (summary.requests_usable, summary.usable_by_use["prefix"]) == (1, 0)
    assert summary.not_a_request_by_ground == {"the prompt of a request whose request line is not in this file": 1}


# Clocks and heads.


def test_the_year_is_that_of_the_files_last_change(tmp_path: Path) -> None:
    for change, year in (((2027, 1, 3), 2026), ((2026, 11, 26), 2026), ((2026, 11, 24), 2025)):
        path = tmp_path / f"{change}.log"
        path.write_text(received("cmpl-a-0") + "\n")
        moment = datetime(*change, tzinfo=UTC).timestamp()
        os.utime(path, (moment, moment))
        summary = extract(Lake(str(tmp_path / f"lake-{change}")), str(path))
        assert summary.first_time == datetime(year, 11, 26, 2, tzinfo=UTC)


def test_an_epoch_tells_the_year_and_a_zone_the_hour(tmp_path: Path) -> None:
    leap = "INFO 02-29 12:00:00 [request_logger.py:65] Received request a: params: x, lora_request: None."
    read(
        tmp_path,
        received("cmpl-a-0"),
        leap,
        options=ReadOptions(epoch=datetime(2026, 12, 1, tzinfo=UTC), zone="Europe/Berlin"),
    )
    assert [row["time"] for row in rows(tmp_path)] == [
        datetime(2028, 2, 29, 11, tzinfo=UTC),
        datetime(2027, 11, 26, 1, tzinfo=UTC),
    ]
    with pytest.raises(ConfigurationError, match="'Mars' is no IANA time zone"):
        read(tmp_path, received("cmpl-a-0"), options=ReadOptions(zone="Mars"))


MESSAGE = "Received request cmpl-a-0: params: x, lora_request: None."


@pytest.mark.parametrize(
    "text",
    [
        f"2026-11-26T01:59:59.5Z stderr F {line(MESSAGE)}",
        f"2026-11-26 02:59:59.500+01:00 {line(MESSAGE)}",
        orjson.dumps({"log": line(MESSAGE) + "\n", "stream": "stderr", "time": "2026-11-26T01:59:59.5Z"}).decode(),
        orjson.dumps({"asctime": "2026-11-26 01:59:59,500", "levelname": "INFO", "message": MESSAGE}).decode(),
        f"INFO 2026-11-26 01:59:59.500 [request_logger.py:65] {MESSAGE}",
    ],
)
def test_whole_times_around_the_servers_own_count_before_it(tmp_path: Path, text: str) -> None:
    read(tmp_path, text)
    assert rows(tmp_path)[0]["time"].replace(microsecond=0) == datetime(2026, 11, 26, 1, 59, 59, tzinfo=UTC)


def test_colours_and_prefixes_do_not_matter(tmp_path: Path) -> None:
    head = (
        "\x1b[1;36m(APIServer pid=2)\x1b[0;0m \x1b[32mINFO\x1b[0m \x1b[90m11-26 02:00:07\x1b[0m [request_logger.py:65] "
    )
    coloured = head + MESSAGE
    read(tmp_path, coloured, line(MESSAGE.replace("a-0", "b-0"), head="prod-7 ", second=9))
    assert [row["time"].second for row in rows(tmp_path)] == [7, 9]


def test_a_request_line_without_time_is_quarantined(tmp_path: Path) -> None:
    assert read(tmp_path, MESSAGE).quarantined_by_reason == {Fault.NO_TIME: 1}


# Faults.


def test_damaged_lines_are_quarantined_and_the_rest_is_read(tmp_path: Path) -> None:
    summary = read(
        tmp_path,
        received("cmpl-a-0"),
        received("cmpl-\0-0"),
        b"INFO \xff\xfe",
        details("cmpl-c-0", "x" * (9 * 2**20), None),
        line("Received request cmpl-d-0: prompt: 'never ends, params: x"),
        line("Received request cmpl-e-0: prompt: '\\ud800', params: x, lora_request: None."),
        line("Received request cmpl-f-0: params: SamplingParams(n=1"),
        end=b"",
    )
    assert summary.quarantined_by_reason == {
        Fault.NUL_BYTE: 1, Fault.NOT_UTF8: 1, Fault.LINE_TOO_LONG: 1, Fault.TRUNCATED_LINE: 3,
    }  # fmt: skip
    assert summary.requests_usable == 1


@settings(max_examples=80, deadline=None)
@given(
    st.sampled_from([received("a"), details("a", TEXT, IDS), body("a", {"model": "m"}), answered("a", "x")]), st.data()
)
def test_a_line_cut_anywhere_never_becomes_another_prompt(text: str, data: st.DataObject) -> None:
    cut = text[: data.draw(st.integers(0, len(text)))]
    parts = vllm_lines.take_apart(cut)
    found = vllm_lines.details(parts.message)
    if found is not None:
        content = vllm_lines.sent(found["rest"])
        assert content.is_broken or content.prompt in (None, TEXT)
        assert content.is_broken or content.token_ids in (None, IDS)


@settings(max_examples=200, deadline=None)
@given(
    st.text(max_size=80), st.sampled_from(["", "Received request ", "Request a details: prompt: ", '{"log": "', "{"])
)
def test_no_line_crashes_the_parser(text: str, start: str) -> None:
    parts = vllm_lines.take_apart(start + text)
    for parse in (vllm_lines.request, vllm_lines.details, vllm_lines.body, vllm_lines.answer):
        if (found := parse(parts.message)) is not None:
            vllm_lines.sent(found["rest"])
            vllm_lines.adapter(found["rest"])
    vllm_lines.settings(parts.message)
