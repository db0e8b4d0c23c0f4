"""The application: which path does what.

Here live the routes every vLLM has, the key check and the faults that strike paths. Developer-mode routes and the
double's own controls are in ``controls.py``.
"""

import asyncio
import contextlib
import secrets
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from http import HTTPStatus
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from warmup_tasks.engines.double.config import DoubleConfig
from warmup_tasks.engines.double.controls import control_routes, developer_routes
from warmup_tasks.engines.double.core import Core
from warmup_tasks.engines.double.embeddings import Embedder
from warmup_tasks.engines.double.generation import GenerationEndpoints, check_length, prompts_of, resolve_model
from warmup_tasks.engines.double.protocol import (
    DetokenizeBody,
    EmbeddingBody,
    LoadAdapterBody,
    TokenizeBody,
    UnloadAdapterBody,
)
from warmup_tasks.engines.double.tokenizer import UnsupportedContentError
from warmup_tasks.engines.double.wire import ApiError, json_response, not_found, read_json

_METRICS_TYPE = "text/plain; version=1.0.0; charset=utf-8"


class _Gate:
    """Checks the key on /v1 paths and acts out ``endpoint_status``, before anything else sees the request."""

    def __init__(self, app: ASGIApp, core: Callable[[], Core]) -> None:
        self._app = app
        self._core = core

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            refusal = self._refusal(scope)
            if refusal is not None:
                await refusal(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _refusal(self, scope: Scope) -> Response | None:
        core = self._core()
        key = core.config.api_key
        if key is not None and scope["path"].startswith("/v1"):
            sent = dict(scope["headers"]).get(b"authorization", b"")
            scheme, _, token = sent.partition(b" ")
            if scheme.lower() != b"bearer" or not secrets.compare_digest(token, key.encode()):
                return json_response({"error": "Unauthorized"}, HTTPStatus.UNAUTHORIZED)
        status = core.faults.now.endpoint_status.get(scope["path"])
        if status is None:
            return None
        return json_response({"detail": HTTPStatus(status).phrase}, status)


class _Endpoints:
    def __init__(self, core: Core) -> None:
        self._core = core
        self._embedder = Embedder(core.config.embedding_dimensions) if core.config.embedding_dimensions else None

    async def health(self, _: Request) -> Response:
        return Response()

    async def version(self, _: Request) -> Response:
        return json_response({"version": self._core.config.version})

    async def kv_event_sources(self, _: Request) -> Response:
        return json_response(self._core.kv_events.sources())

    async def metrics(self, _: Request) -> Response:
        return Response(self._core.metrics_page(), media_type=_METRICS_TYPE)

    async def models(self, _: Request) -> Response:
        config = self._core.config
        cards = [_card(config.model, config.model_path, None, config.max_model_len)]
        cards += [_card(a.name, a.path, config.model, None) for a in self._core.adapters.listing()]
        return json_response({"object": "list", "data": cards})

    async def tokenize(self, request: Request) -> Response:
        body = TokenizeBody.read(await read_json(request))
        resolve_model(self._core, body.model)
        tokenizer = self._core.tokenizer
        if body.messages is None:
            tokens = list(tokenizer.encode(body.prompt or ""))
        else:
            try:
                tokens = tokenizer.encode_chat(
                    body.messages,
                    body.tools,
                    body.chat_template_kwargs,
                    add_generation_prompt=body.add_generation_prompt,
                    continue_final_message=body.continue_final_message,
                )
            except UnsupportedContentError as error:
                raise ApiError(HTTPStatus.BAD_REQUEST, str(error)) from error
        texts = [tokenizer.text_of(token) for token in tokens] if body.return_token_strs else None
        length = self._core.config.max_model_len
        return json_response({"count": len(tokens), "max_model_len": length, "tokens": tokens, "token_strs": texts})

    async def detokenize(self, request: Request) -> Response:
        body = DetokenizeBody.read(await read_json(request))
        resolve_model(self._core, body.model)
        return json_response({"prompt": self._core.tokenizer.decode(body.tokens)})

    async def embeddings(self, request: Request) -> Response:
        if self._embedder is None:
            return not_found()
        body = EmbeddingBody.read(await read_json(request))
        resolve_model(self._core, body.model)
        encode = self._core.tokenizer.encode
        texts = [encode(item) if isinstance(item, str) else item for item in prompts_of(body.input)]
        for text in texts:
            check_length(text, self._core.config.max_model_len)
        count = sum(map(len, texts))
        await asyncio.sleep(self._core.scheduler.occupied_s(count))
        data = [
            {"index": index, "object": "embedding", "embedding": self._embedder.embed(tokens)}
            for index, tokens in enumerate(texts)
        ]
        usage = {"prompt_tokens": count, "total_tokens": count, "completion_tokens": 0, "prompt_tokens_details": None}
        return json_response(
            {
                "id": f"embd-{uuid.uuid4().hex}",
                "object": "list",
                "created": int(time.time()),
                "model": self._core.config.model,
                "data": data,
                "usage": usage,
            }
        )

    async def load_adapter(self, request: Request) -> Response:
        if not self._has_runtime_adapters():
            return not_found()
        body = LoadAdapterBody.read(await read_json(request))
        adapter = await self._core.load_adapter(body.lora_name, body.lora_path, in_place=body.load_inplace)
        return Response(f"Success: LoRA adapter '{adapter.name}' added successfully.")

    async def unload_adapter(self, request: Request) -> Response:
        if not self._has_runtime_adapters():
            return not_found()
        body = UnloadAdapterBody.read(await read_json(request))
        self._core.adapters.unload(body.lora_name)
        return Response(f"Success: LoRA adapter '{body.lora_name}' removed successfully.")

    def _has_runtime_adapters(self) -> bool:
        return self._core.config.runtime_adapters and not self._core.faults.now.runtime_adapters_off


def _card(name: str, root: str, parent: str | None, max_model_len: int | None) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": int(time.time()),
        "owned_by": "warmup-double",
        "root": root,
        "parent": parent,
        "max_model_len": max_model_len,
        "permission": [],
    }


async def _as_error(_: Request, error: Exception) -> Response:
    if not isinstance(error, ApiError):
        raise error
    return json_response(error.body, error.status)


async def _as_detail(_: Request, error: Exception) -> Response:
    status = HTTPStatus(error.status_code if isinstance(error, HTTPException) else 500)
    return json_response({"detail": status.phrase}, status)


class _LateCore:
    """The core is made when the event loop runs; routes are made before, and reach it through this."""

    def __init__(self, config: DoubleConfig) -> None:
        self._config = config
        self._core: Core | None = None

    def __call__(self) -> Core:
        if self._core is None:
            self._core = Core(self._config)
        return self._core


def make_app(config: DoubleConfig) -> Starlette:
    """Return the ASGI application of one replica."""
    core = _LateCore(config)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        app.router.routes.extend(_routes(core()))
        yield
        await core().aclose()

    return Starlette(
        lifespan=lifespan,
        middleware=[Middleware(_Gate, core=core)],
        exception_handlers={ApiError: _as_error, HTTPException: _as_detail},
    )


def _routes(core: Core) -> list[Route]:
    endpoints = _Endpoints(core)
    generation = GenerationEndpoints(core)
    get: dict[str, Callable[[Request], Awaitable[Response]]] = {
        "/health": endpoints.health,
        "/version": endpoints.version,
        "/metrics": endpoints.metrics,
        "/kv_event_sources": endpoints.kv_event_sources,
        "/v1/models": endpoints.models,
    }
    post: dict[str, Callable[[Request], Awaitable[Response]]] = {
        "/v1/chat/completions": generation.chat,
        "/v1/completions": generation.completion,
        "/v1/embeddings": endpoints.embeddings,
        "/v1/load_lora_adapter": endpoints.load_adapter,
        "/v1/unload_lora_adapter": endpoints.unload_adapter,
        "/tokenize": endpoints.tokenize,
        "/detokenize": endpoints.detokenize,
    }
    routes = [Route(path, handler, methods=["POST"]) for path, handler in post.items()]
    routes += [Route(path, handler, methods=["GET"]) for path, handler in get.items()]
    routes += control_routes(core)
    if core.config.developer_mode:
        routes += developer_routes(core)
    return routes
