"""JSON, errors and event streams as the engine puts them on the wire.

Here live the shapes that every endpoint shares. No endpoint, no decision.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Mapping
from http import HTTPStatus
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

_PATHS = re.compile(r"(?<![\w.])/(?:[\w.\-]+/)+[\w.\-]+")


class ApiError(Exception):
    """An error answer with the engine's body."""

    def __init__(
        self, status: HTTPStatus, message: str, *, kind: str = "BadRequestError", param: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.body = {
            "error": {"message": _PATHS.sub("<path>", message), "type": kind, "param": param, "code": status.value}
        }


class BrokenStreamError(Exception):
    """Raised by a stream's events to leave the response without its end."""


def invalid(message: str, param: str | None = None, value: Any = None) -> ApiError:
    """Return the 400 of a value that a validator refuses; name and value stand at the end, as the engine writes it."""
    named = [f"{label}={content}" for label, content in (("parameter", param), ("value", value)) if content is not None]
    return ApiError(HTTPStatus.BAD_REQUEST, f"{message} ({', '.join(named)})" if named else message, param=param)


def json_response(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a JSON response."""
    return Response(orjson.dumps(content), status_code=status, media_type="application/json", headers=headers)


def not_found() -> Response:
    """Return what a path without an endpoint answers."""
    return json_response({"detail": "Not Found"}, HTTPStatus.NOT_FOUND)


async def read_json(request: Request) -> Any:
    """Return the body of a JSON request. Raises ``ApiError`` for another media type or broken JSON."""
    media_type = request.headers.get("content-type", "").lower().partition(";")[0]
    if media_type != "application/json":
        raise ApiError(
            HTTPStatus.BAD_REQUEST,
            "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed",
            kind="Bad Request",
        )
    try:
        return orjson.loads(await request.body())
    except ValueError as error:
        message = "1 validation error:\n  {'type': 'json_invalid', 'loc': 'body', 'msg': 'JSON decode error'}"
        raise ApiError(HTTPStatus.BAD_REQUEST, message, kind="Bad Request", param="body") from error


async def until_disconnected(receive: Receive) -> None:
    """Return when the client has gone. The request's body must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """Server-sent events; ``on_gone`` is called when the client leaves first."""

    def __init__(self, events: AsyncIterator[bytes], on_gone: Callable[[], None]) -> None:
        super().__init__(media_type="text/event-stream; charset=utf-8")
        del self.headers["content-length"]
        self._events = events
        self._on_gone = on_gone

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events, ending early when the client disconnects."""
        watcher = asyncio.ensure_future(until_disconnected(receive))
        watcher.add_done_callback(lambda task: None if task.cancelled() else self._on_gone())
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async for event in self._events:
                await send({"type": "http.response.body", "body": event, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except BrokenStreamError:
            return  # a response without its end: the server closes the connection
        finally:
            watcher.cancel()


def event(content: Any) -> bytes:
    """Return one server-sent event."""
    return b"data: " + orjson.dumps(content) + b"\n\n"


STREAM_END = b"data: [DONE]\n\n"
