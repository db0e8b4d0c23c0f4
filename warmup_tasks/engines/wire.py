"""The OpenAI-style bodies that vLLM takes and the streamed pieces that it sends back. Pure: bytes in, values out."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson

from warmup_tasks.engines.base import Chunk, GenerationRequest
from warmup_tasks.engines.usage import cached_tokens, whole_number
from warmup_tasks.items import PromptBody

TOP_LOGPROBS = 5


def generation_path(body: PromptBody) -> str:
    """Return the endpoint of a generation: chat for messages, completions for text and token ids."""
    return "/v1/chat/completions" if body.messages is not None else "/v1/completions"


def prompt_fields(body: PromptBody) -> dict[str, Any]:
    """Return the fields that carry the prompt, tools and template arguments exactly as they were sent."""
    if body.messages is None:
        return {"prompt": body.prompt if body.prompt is not None else body.token_ids}
    fields: dict[str, Any] = {"messages": body.messages}
    if body.tools:
        fields["tools"] = body.tools
    if body.template_args:
        fields["chat_template_kwargs"] = body.template_args
    return fields


def generation_json(request: GenerationRequest) -> bytes:
    """Return the JSON body of a streamed generation."""
    fields = {
        "model": request.model,
        **prompt_fields(request.body),
        "max_tokens": request.max_tokens,
        "temperature": request.temperature,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if request.seed is not None:
        fields["seed"] = request.seed
    if request.cache_salt is not None:
        fields["cache_salt"] = request.cache_salt
    if request.with_logprobs:
        is_chat = request.body.messages is not None
        fields |= {"logprobs": True, "top_logprobs": TOP_LOGPROBS} if is_chat else {"logprobs": TOP_LOGPROBS}
    return orjson.dumps(fields)


def tokenize_json(body: PromptBody, model: str) -> bytes:
    """Return the JSON body of a ``/tokenize`` call for the prompt as a generation would render it."""
    return orjson.dumps({"model": model, **prompt_fields(body)})


def chunk_of(piece: Mapping[str, Any]) -> Chunk | None:
    """Return one streamed piece, or None where it carries nothing: a chat's opening piece with the role alone."""
    usage = piece.get("usage") or {}
    choices = piece.get("choices") or []
    choice = choices[0] if choices else {}
    delta = choice.get("delta")
    if delta is None:
        text, scores = choice.get("text") or "", _completion_scores(choice.get("logprobs") or {})
    else:
        text = (delta.get("reasoning") or "") + (delta.get("content") or "")
        scores = _chat_scores(choice.get("logprobs") or {})
    finish_reason = choice.get("finish_reason")
    is_opening = delta is not None and "role" in delta and not (text or scores.tokens or delta.get("tool_calls"))
    if not usage and finish_reason is None and (is_opening or not choices):
        return None
    return Chunk(
        text=text,
        tokens=scores.tokens,
        logprobs=scores.logprobs,
        top_logprobs=scores.top_logprobs,
        prompt_tokens=whole_number(usage.get("prompt_tokens")),
        cached_tokens=cached_tokens(usage),
        completion_tokens=whole_number(usage.get("completion_tokens")),
        finish_reason=finish_reason,
    )


class _Scores(NamedTuple):
    """The tokens of one piece with their log-probabilities and those of the runners-up."""

    tokens: tuple[str, ...]
    logprobs: tuple[float, ...]
    top_logprobs: tuple[dict[str, float], ...]


def _completion_scores(given: Mapping[str, Any]) -> _Scores:
    return _Scores(
        tuple(given.get("tokens") or ()),
        tuple(given.get("token_logprobs") or ()),
        tuple(dict(top or {}) for top in given.get("top_logprobs") or ()),
    )


def _chat_scores(given: Mapping[str, Any]) -> _Scores:
    entries = given.get("content") or []
    return _Scores(
        tuple(entry["token"] for entry in entries),
        tuple(entry["logprob"] for entry in entries),
        tuple({top["token"]: top["logprob"] for top in entry.get("top_logprobs") or ()} for entry in entries),
    )
