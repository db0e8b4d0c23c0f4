"""What each format makes of a record, and how formats are told apart."""

from datetime import UTC, datetime
from typing import Any

import orjson
import pytest

from warmup_tasks.identity import prompt_digest
from warmup_tasks.items import Feedback, PromptBody
from warmup_tasks.sources.agent_text import AgentTextSource
from warmup_tasks.sources.base import NotARequest, Request, Sample
from warmup_tasks.sources.faults import BadRecordError, Fault
from warmup_tasks.sources.normalised import NormalisedSource
from warmup_tasks.sources.openai import OpenAISource
from warmup_tasks.sources.reading import Line
from warmup_tasks.sources.registry import SOURCES

MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"content": "What is open?", "role": "user", "name": "ann"},
    {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "function": {"name": "f", "arguments": "{}"}}]},
]
TOOLS = [{"type": "function", "function": {"name": "z", "parameters": {"type": "object", "b": 1, "a": None}}}]
TEMPLATE_ARGS = {"enable_thinking": False, "date_string": "2026-11-26"}
CALL: dict[str, Any] = {
    "time": "2026-11-26T02:00:00Z",
    "request_id": "r1",
    "tenant": "acme/eu",
    "status": 200,
    "latency_ms": 900,
    "ttft_ms": 120.5,
    "session_id": "s1",
    "request": {
        "model": "demo",
        "messages": MESSAGES,
        "tools": TOOLS,
        "chat_template_kwargs": TEMPLATE_ARGS,
        "cache_salt": "5a17",
        "temperature": 0,
    },
    "response": {
        "id": "chatcmpl-1",
        "created": 1795658401,
        "choices": [{"message": {"role": "assistant", "content": "Nothing."}}],
        "usage": {"prompt_tokens": 40, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 32}},
    },
}


def call(**changes: Any) -> dict[str, Any]:
    return {name: value for name, value in {**CALL, **changes}.items() if value is not ...}


def openai(**changes: Any) -> Request:
    request = OpenAISource().read_record(call(**changes))
    assert isinstance(request, Request)
    return request


def test_a_chat_call_is_rebuilt_exactly_as_sent() -> None:
    request = openai()
    assert request.time == datetime(2026, 11, 26, 2, tzinfo=UTC)
    assert (request.request_id, request.tenant, request.model, request.adapter) == ("r1", "acme/eu", "demo", None)
    assert (request.cache_salt, request.session_id, request.status) == ("5a17", "s1", 200)
    assert (request.input_tokens, request.output_tokens, request.cached_tokens) == (40, 3, 32)
    assert (request.ttft_ms, request.latency_ms, request.answer_text) == (120.5, 900.0, "Nothing.")
    assert request.prompt.body_json is not None
    sent = {"messages": MESSAGES, "tools": TOOLS, "template_args": TEMPLATE_ARGS}
    assert request.prompt.body_json.encode() == orjson.dumps(sent)
    body = PromptBody.model_validate_json(request.prompt.body_json)
    assert orjson.dumps([body.messages, body.tools, body.template_args]) == orjson.dumps(
        [MESSAGES, TOOLS, TEMPLATE_ARGS]
    )
    assert request.prompt.sha256 == prompt_digest(MESSAGES, TOOLS, TEMPLATE_ARGS)


@pytest.mark.parametrize(
    ("usage", "cached"),
    [
        (None, None),
        ({"prompt_tokens": 40}, None),
        ({"prompt_tokens_details": None}, None),
        ({"prompt_tokens_details": {"cached_tokens": None}}, None),
        ({"prompt_tokens_details": {"cached_tokens": 0}}, 0),
        ({"prompt_tokens_details": {"cached_tokens": 512}}, 512),
    ],
)
def test_unknown_cached_tokens_are_not_zero(usage: Any, cached: int | None) -> None:
    assert openai(response={"usage": usage}).cached_tokens == cached


def test_the_flat_form_and_common_gateways_names() -> None:
    flat = OpenAISource().read_record(
        {
            "startTime": "2026-11-26T02:00:00+00:00",
            "id": "x-1",
            "model": "demo",
            "prompt": "1 + 1 =",
            "team_id": "blue",
            "status": "success",
            "latency": 1.5,
            "time_to_first_token": 0.25,
            "choices": [{"text": " 2"}],
            "usage": {"input_tokens": 5, "output_tokens": 1},
            "metadata": {"session_id": "s9"},
        }
    )
    assert isinstance(flat, Request)
    assert (flat.request_id, flat.tenant, flat.status, flat.session_id) == ("x-1", "blue", 200, "s9")
    assert (flat.latency_ms, flat.ttft_ms, flat.answer_text) == (1500.0, 250.0, " 2")
    assert (flat.input_tokens, flat.output_tokens, flat.request_type) == (5, 1, "completion")
    assert flat.prompt.body_json == '{"prompt":"1 + 1 ="}'


def test_bodies_that_stand_as_json_text_or_one_level_deeper_are_found() -> None:
    expected = openai().prompt
    assert openai(request=orjson.dumps(CALL["request"]).decode()).prompt == expected
    assert openai(request={"url": "/v1/chat/completions", "body": CALL["request"]}).prompt == expected
    assert openai(request=..., request_body=CALL["request"]).prompt == expected


def test_an_adapter_named_as_the_model_is_one_when_the_base_model_stands_beside_it() -> None:
    request = openai(base_model="demo", request={**CALL["request"], "model": "billing-v3"})
    assert (request.model, request.adapter) == ("demo", "billing-v3")
    assert (openai(base_model="demo").model, openai(base_model="demo").adapter) == ("demo", None)
    assert openai(lora_request={"lora_name": "billing-v3"}).adapter == "billing-v3"


def test_a_log_that_names_users_only_is_read_user_by_user() -> None:
    assert openai(tenant=..., request={**CALL["request"], "user": "u-7"}).tenant == "u-7"
    assert openai(request={**CALL["request"], "user": "u-7"}).tenant == "acme/eu"
    assert openai(tenant=..., team_id="", metadata={"tenant": "blue"}).tenant == "blue"
    assert openai(tenant=...).tenant is None


def test_time_falls_back_to_the_response_and_a_missing_one_is_a_fault() -> None:
    assert openai(time=...).time == datetime(2026, 11, 26, 2, 0, 1, tzinfo=UTC)
    with pytest.raises(BadRecordError) as caught:
        openai(time=..., response={})
    assert caught.value.fault is Fault.NO_TIME


@pytest.mark.parametrize(
    ("response", "status"),
    [
        ({"error": {"code": 429}}, 429),
        ({"error": {"code": "rate_limit"}}, 500),
        ({"status_code": 503}, 503),
        ({}, None),
    ],
)
def test_the_status_is_found_in_the_response(response: Any, status: int | None) -> None:
    assert openai(status=..., response=response).status == status


def test_a_response_that_is_no_object_says_nothing_and_the_request_counts() -> None:
    for response in ("upstream timed out", None, [1]):
        request = openai(response=response)
        assert (request.answer_text, request.cached_tokens, request.prompt.sha256 is None) == (None, None, False)


@pytest.mark.parametrize(
    ("record", "ground"),
    [
        ({"time": 1, "method": "GET", "path": "/health", "status": 200}, "endpoint health"),
        ({"time": 1, "path": "/v1/models?x=1"}, "endpoint models"),
        ({"event": "startup"}, "neither a request body nor a model"),
    ],
)
def test_what_is_no_request_to_a_model_is_not_quarantined(record: dict[str, Any], ground: str) -> None:
    assert OpenAISource().read_record(record) == NotARequest(ground)


@pytest.mark.parametrize(
    "request_body",
    [
        {"model": "demo", "messages": "hello"},
        {"model": "demo", "messages": [["role", "user"]]},
        {"model": "demo", "messages": MESSAGES, "tools": "none"},
        {"model": "demo", "messages": MESSAGES, "chat_template_kwargs": [1]},
        {"model": "demo", "prompt": {"text": "x"}},
        {"model": "demo", "prompt": ["x", 3]},
        {"model": 3.5, "prompt": "x"},
    ],
)
def test_bad_types_are_faults_that_name_the_field_and_no_content(request_body: dict[str, Any]) -> None:
    with pytest.raises(BadRecordError) as caught:
        openai(request=request_body)
    assert caught.value.fault is Fault.BAD_TYPE
    assert "hello" not in str(caught.value)


def test_prompts_of_every_shape() -> None:
    def prompt(**body: Any) -> tuple[str, str | None]:
        request = openai(request={"model": "demo", **body})
        return request.request_type, request.prompt.body_json

    assert prompt(prompt=["only one"]) == ("completion", '{"prompt":"only one"}')
    assert prompt(prompt=["one", "two"]) == ("completion", None)
    assert prompt(prompt=[5, 6, 7]) == ("completion", '{"token_ids":[5,6,7]}')
    assert prompt(prompt=[[5, 6, 7]]) == ("completion", '{"token_ids":[5,6,7]}')
    assert prompt(prompt="") == ("completion", None)
    assert prompt(messages=[]) == ("chat", None)
    assert prompt(input="embed me") == ("embedding", '{"prompt":"embed me"}')
    assert prompt(prompt="NUL \0 inside") == ("completion", '{"prompt":"NUL \\u0000 inside"}')


def test_a_prompt_that_is_nested_too_deep_is_a_fault() -> None:
    deep: list[Any] = []
    for _ in range(300):
        deep = [deep]
    with pytest.raises(BadRecordError) as caught:
        openai(request={"model": "demo", "messages": [{"role": "user", "content": deep}]})
    assert caught.value.fault is Fault.NO_CANONICAL_FORM


def test_wide_integers_in_tools_are_kept_and_told_apart() -> None:
    body = {"model": "demo", "messages": MESSAGES}
    found = [openai(request={**body, "tools": [{"maximum": number}]}) for number in (2**63, 2**63 + 1)]
    assert found[0].prompt.body_json is not None
    assert '"maximum":9223372036854775808' in found[0].prompt.body_json
    assert found[0].prompt.sha256 != found[1].prompt.sha256


def normalised(**fields: Any) -> Any:
    return NormalisedSource().read_record({"record": "request", "time": 1795658400, **fields})


def test_the_projects_own_format_has_the_columns_of_the_lake() -> None:
    request = normalised(
        tenant="t", model="m", adapter="a", messages=MESSAGES, tools=TOOLS, template_args=TEMPLATE_ARGS,
        block_hashes=[2**64 - 1, 2**63], block_tokens=512, is_truncated=True, cached_tokens=0, x_note="free",
    )  # fmt: skip
    assert request.block_hashes == [2**64 - 1, 2**63]
    assert (request.block_tokens, request.is_truncated, request.cached_tokens) == (512, True, 0)
    assert (request.request_type, request.prompt.sha256) == ("chat", prompt_digest(MESSAGES, TOOLS, TEMPLATE_ARGS))
    assert normalised(token_ids=[1, 2]).prompt.body_json == '{"token_ids":[1,2]}'
    assert normalised(input_tokens=7).request_type == "unknown"


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"cache_slat": "x"}, Fault.UNKNOWN_FIELD),
        ({"messages": MESSAGES, "prompt": "x"}, Fault.BAD_VALUE),
        ({"request_type": "poem"}, Fault.BAD_VALUE),
        ({"block_hashes": [-1]}, Fault.BAD_VALUE),
        ({"block_hashes": [2**64]}, Fault.BAD_VALUE),
        ({"block_hashes": 5}, Fault.BAD_TYPE),
        ({"status": 2**31}, Fault.BAD_VALUE),
        ({"is_truncated": "yes"}, Fault.BAD_TYPE),
        ({"tenant": ""}, Fault.EMPTY_TENANT),
        ({"record": "poem"}, Fault.BAD_VALUE),
    ],
)
def test_the_projects_own_format_is_strict(fields: dict[str, Any], fault: Fault) -> None:
    with pytest.raises(BadRecordError) as caught:
        normalised(**fields)
    assert caught.value.fault is fault


def test_feedback_names_its_prompt_by_digest_or_content() -> None:
    row = {"record": "feedback", "confidence": 0.5, "correction": "No.", "adopted_count": 3, "tenant": "t"}
    by_digest = normalised(**row, prompt_sha256=prompt_digest("x"))
    by_content = normalised(**row, prompt="x")
    assert isinstance(by_digest, Feedback)
    assert by_digest == by_content
    for bad in ({"confidence": 1.5}, {"confidence": None}, {"adopted_count": -1}):
        with pytest.raises(BadRecordError):
            normalised(**{**row, "prompt": "x", **bad})
    with pytest.raises(BadRecordError):
        normalised(**row)


def test_agent_text_is_a_completion_prompt_exactly_as_it_stands() -> None:
    record = {"timestamp": 1795658400123456, "input": "user: hi\n\n ", "output": "ok", "session_id": "s"}
    request = AgentTextSource().read_record(record)
    assert isinstance(request, Request)
    assert request.prompt.body_json == '{"prompt":"user: hi\\n\\n "}'
    assert (request.tenant, request.model, request.session_id, request.answer_text) == (None, None, "s", "ok")


@pytest.mark.parametrize(
    ("record", "name"),
    [
        (CALL, "openai"),
        ({"model": "m", "messages": []}, "openai"),
        ({"record": "request", "time": 1, "prompt": "x", "model": "m"}, "normalised"),
        ({"timestamp": 1, "input": "a", "output": "b", "session_id": "c"}, "agent-text"),
    ],
)
def test_each_format_is_surest_of_its_own(record: dict[str, Any], name: str) -> None:
    data = orjson.dumps(record)
    sample = Sample("log", [Line(1, data, len(data))], [record])
    best = max(SOURCES, key=lambda source: source.recognise(sample).score)
    assert best.name == name
    assert "1 of 1 lines" in best.recognise(sample).ground
