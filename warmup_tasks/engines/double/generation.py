"""``/v1/chat/completions`` and ``/v1/completions``: from a body to prompts under way, and back to a response.

Here live the two endpoints and the faults that strike a generation as a whole. The shapes of responses are in
``responses.py``.
"""

import asyncio
import random
import uuid
from collections.abc import AsyncIterator, Awaitable, Sequence
from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import Response

from warmup_tasks.engines.double.adapters import Adapter
from warmup_tasks.engines.double.answers import Sampling
from warmup_tasks.engines.double.core import Core
from warmup_tasks.engines.double.flights import Flight
from warmup_tasks.engines.double.protocol import ChatBody, CompletionBody
from warmup_tasks.engines.double.responses import Answer, ChatShape, CompletionShape, Shape
from warmup_tasks.engines.double.tokenizer import UnsupportedContentError
from warmup_tasks.engines.double.wire import (
    STREAM_END,
    ApiError,
    BrokenStreamError,
    EventStream,
    event,
    invalid,
    json_response,
    read_json,
    until_disconnected,
)


class GenerationEndpoints:
    """The two generation endpoints of one replica."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._seeds = random.Random(core.config.seed)

    async def chat(self, request: Request) -> Response:
        """Answer a chat."""
        body = ChatBody.read(await read_json(request))
        adapter = resolve_model(self._core, body.model)
        try:
            prompt = self._core.tokenizer.encode_chat(
                body.messages,
                body.tools,
                body.chat_template_kwargs,
                add_generation_prompt=body.add_generation_prompt,
                continue_final_message=body.continue_final_message,
            )
        except UnsupportedContentError as error:
            raise ApiError(HTTPStatus.BAD_REQUEST, str(error)) from error
        name = adapter.name if adapter else self._core.config.model
        shape = ChatShape(self._core, body, f"chatcmpl-{_request_id(request)}", name)
        limit = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
        return await self._serve(request, body, shape, [prompt], adapter, limit)

    async def completion(self, request: Request) -> Response:
        """Continue one prompt or each of a list."""
        body = CompletionBody.read(await read_json(request))
        if body.echo:
            raise ApiError(HTTPStatus.NOT_IMPLEMENTED, "the double does not echo", kind="NotImplementedError")
        adapter = resolve_model(self._core, body.model)
        name = adapter.name if adapter else self._core.config.model
        shape = CompletionShape(self._core, body, f"cmpl-{_request_id(request)}", name)
        limit = 16 if body.max_tokens is None else body.max_tokens
        return await self._serve(request, body, shape, self._prompts(body), adapter, limit)

    def _prompts(self, body: CompletionBody) -> list[list[int]]:
        encode = self._core.tokenizer.encode
        return [list(encode(prompt)) if isinstance(prompt, str) else prompt for prompt in prompts_of(body.prompt)]

    async def _serve(
        self,
        request: Request,
        body: ChatBody | CompletionBody,
        shape: Shape,
        prompts: list[list[int]],
        adapter: Adapter | None,
        limit: int | None,
    ) -> Response:
        flights = [
            self._flight(body, prompt, adapter, limit, choice) for prompt in prompts for choice in range(body.n or 1)
        ]
        if not flights:
            raise invalid("The prompt is empty.", "prompt")
        faults = self._core.faults
        if faults.strikes("refuse"):
            raise ApiError(HTTPStatus.TOO_MANY_REQUESTS, "Too many requests", kind="Too Many Requests")
        if faults.strikes("fail"):
            raise ApiError(HTTPStatus.INTERNAL_SERVER_ERROR, "Internal server error", kind="InternalServerError")
        if faults.strikes("hang"):
            await until_disconnected(request.receive)
            return Response(status_code=HTTPStatus.GATEWAY_TIMEOUT)
        for flight in flights:
            self._core.scheduler.add(flight)
        answers = [Answer(self._core.tokenizer, flight, body.stops) for flight in flights]
        if body.stream:
            return EventStream(self._events(shape, answers), lambda: self._abort(flights))
        try:
            gone = await _first_of(asyncio.gather(*(f.finished.wait() for f in flights)), request)
        finally:
            self._abort(flights)
        if gone:
            return Response(status_code=HTTPStatus.GATEWAY_TIMEOUT)
        if any(flight.finish_reason == "error" for flight in flights):
            raise ApiError(HTTPStatus.INTERNAL_SERVER_ERROR, "Internal server error", kind="InternalServerError")
        for answer in answers:
            answer.take(answer.flight.draws)
        return json_response(shape.whole(answers))

    def _flight(
        self,
        body: ChatBody | CompletionBody,
        prompt: list[int],
        adapter: Adapter | None,
        limit: int | None,
        choice: int,
    ) -> Flight:
        config = self._core.config
        room = config.max_model_len - len(prompt)
        check_length(prompt, config.max_model_len)
        if limit is not None and limit > config.max_model_len:
            message = f"max_tokens={limit} cannot be greater than max_model_len={config.max_model_len}. "
            raise invalid(message + "Please request fewer output tokens.", "max_tokens", limit)
        max_tokens = room if limit is None else min(limit, room)
        if max_tokens < 1:
            raise invalid(f"max_tokens must be at least 1, got {max_tokens}.", "max_tokens", max_tokens)
        if not prompt:
            raise ApiError(HTTPStatus.BAD_REQUEST, "The decoder prompt cannot be empty")
        if body.priority and config.scheduling_policy != "priority":
            message = f"Got priority {body.priority} but Priority scheduling is not enabled."
            raise ApiError(HTTPStatus.BAD_REQUEST, message)
        temperature = 1.0 if body.temperature is None else body.temperature
        seed = body.seed if body.seed is not None else self._seeds.getrandbits(63)
        sampling = Sampling(temperature, seed + choice, body.top, body.ignore_eos, body.min_tokens)
        return Flight(list(prompt), adapter, body.cache_salt, max_tokens, sampling, body.priority)

    def _abort(self, flights: list[Flight]) -> None:
        for flight in flights:
            self._core.scheduler.abort(flight)

    async def _events(self, shape: Shape, answers: list[Answer]) -> AsyncIterator[bytes]:
        breaks = self._core.faults.strikes("break_stream")
        is_first = True
        try:
            async for index, answer in _interleaved(answers):
                if answer.flight.finish_reason == "error":
                    breaks = True
                if is_first:
                    is_first = False
                    for head in shape.heads(len(answers)):
                        yield event(head)
                if breaks:
                    if self._core.faults.now.break_stream_by == "disconnect":
                        raise BrokenStreamError
                    error = ApiError(
                        HTTPStatus.INTERNAL_SERVER_ERROR, "Internal server error", kind="InternalServerError"
                    )
                    yield event(error.body)
                    break
                yield event(shape.piece(index, answer))
                if answer.is_stopped:
                    self._core.scheduler.abort(answer.flight)
            else:
                if shape.body.has_usage_chunk:
                    yield event(shape.usage_chunk(answers))
            yield STREAM_END
        finally:
            self._abort([answer.flight for answer in answers])


def check_length(prompt: Sequence[int], max_model_len: int) -> None:
    """Refuse a prompt that the model has no room for, in the engine's words."""
    if len(prompt) > max_model_len:
        raise invalid(
            f"This model's maximum context length is {max_model_len} tokens. However, your prompt contains "
            f"{len(prompt)} input tokens, which exceeds this limit even without any output tokens. "
            "Please reduce the length of the input prompt.",
            "input_tokens",
            len(prompt),
        )


def prompts_of(given: str | list[str] | list[int] | list[list[int]]) -> list[str | list[int]]:
    """Return the prompts of a text, a list of texts, one list of token ids or several."""
    if isinstance(given, str):
        return [given]
    ids = [item for item in given if isinstance(item, int)]
    return [ids] if ids else [item for item in given if not isinstance(item, int)]


def resolve_model(core: Core, name: str | None) -> Adapter | None:
    """Return the adapter that a model name means, None for the base model. Raises ``ApiError`` (404)."""
    if not name or name == core.config.model:
        return None
    adapter = core.adapters.get(name)
    if adapter is None:
        message = f"The model `{name}` does not exist. Valid aliases: {core.config.model}."
        raise ApiError(HTTPStatus.NOT_FOUND, message, kind="NotFoundError", param="model")
    return adapter


def _request_id(request: Request) -> str:
    return request.headers.get("x-request-id") or uuid.uuid4().hex


async def _first_of(work: Awaitable[object], request: Request) -> bool:
    """Wait for the work or for the client to leave; return whether it left."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(until_disconnected(request.receive))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        return not working.done()
    finally:
        working.cancel()
        leaving.cancel()


async def _interleaved(answers: list[Answer]) -> AsyncIterator[tuple[int, Answer]]:
    """Yield (index, answer) whenever an answer has grown or ended."""
    if len(answers) == 1:
        async for draws in answers[0].flight.stream():
            answers[0].take(draws)
            yield 0, answers[0]
            if answers[0].is_stopped:
                return
        return
    queue: asyncio.Queue[int | None] = asyncio.Queue()

    async def feed(index: int) -> None:
        async for draws in answers[index].flight.stream():
            answers[index].take(draws)
            queue.put_nowait(index)
            if answers[index].is_stopped:
                break
        queue.put_nowait(None)

    feeders = [asyncio.ensure_future(feed(index)) for index in range(len(answers))]
    open_count = len(feeders)
    try:
        while open_count:
            grown = await queue.get()
            if grown is None:
                open_count -= 1
            else:
                yield grown, answers[grown]
    finally:
        for feeder in feeders:
            feeder.cancel()
