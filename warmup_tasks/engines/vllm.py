"""The client of vLLM's HTTP surface: one replica behind its address, asynchronous, streaming, with a deadline a call.

Here live sending, timing and the detection of endpoints; bodies and pieces are in ``wire.py``, refusals in
``refusals.py``, metrics in ``metrics.py``, events in ``kv_events.py``. Prompts and keys are never logged.
"""

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Awaitable, Mapping
from contextlib import aclosing
from typing import Any, TypeVar

import httpx
import orjson

from warmup_tasks.engines import kv_events, refusals, wire
from warmup_tasks.engines.base import (
    AdapterListing,
    Capabilities,
    Chunk,
    Engine,
    EngineMetrics,
    EngineReport,
    Generation,
    GenerationRequest,
    KvEvent,
)
from warmup_tasks.engines.metrics import parse_metrics
from warmup_tasks.engines.tls import tls_context
from warmup_tasks.engines.usage import whole_number
from warmup_tasks.errors import ConfigurationError, GiveUpError, RejectItemError, RetryLaterError
from warmup_tasks.fleet_file import ReplicaSpec
from warmup_tasks.items import PromptBody, Reason

_LIMITS = httpx.Limits(max_connections=64, max_keepalive_connections=64, keepalive_expiry=30.0)
_JSON = {"content-type": "application/json"}
_THERE = (200, 400, 405)
_OPTIONAL = ("/tokenize", "/v1/embeddings", "/reset_prefix_cache")

T = TypeVar("T")


class VllmEngine(Engine):
    """One vLLM replica, or anything that speaks its surface.

    Args:
        replica: address, model and, optionally, the endpoint of KV events and the name of the variable with the key.

    Raises:
        ConfigurationError: ``api_key_env`` names a variable that is not set.
    """

    def __init__(self, replica: ReplicaSpec) -> None:
        self._replica = replica
        self._tells_pause: bool | None = None
        headers = {}
        if replica.api_key_env is not None:
            key = os.environ.get(replica.api_key_env)
            if not key:
                raise ConfigurationError(f"replica {replica.name}: set ${replica.api_key_env} to the engine's API key")
            headers["authorization"] = f"Bearer {key}"
        trusted = tls_context(replica)
        self._client = httpx.AsyncClient(
            base_url=replica.url,
            headers=headers,
            limits=_LIMITS,
            timeout=None,  # noqa: S113 every call has a deadline
            verify=trusted,
        )

    async def capabilities(self, *, deadline_s: float) -> Capabilities:
        """Detect version, block size, capacity and endpoints; see :meth:`Engine.capabilities`."""
        metrics, models, version, adapters, *found = await asyncio.gather(
            self.metrics(deadline_s=deadline_s),
            self._models(deadline_s),
            self._optional_json("/version", deadline_s),
            self._has_runtime_adapters(deadline_s),
            *(self._status_of(path, deadline_s) for path in _OPTIONAL),
        )
        base = self._base_model(models)
        has = {path: status in _THERE for path, status in zip(_OPTIONAL, found, strict=True)}
        absent = [f"{path}: not offered (HTTP {s})" for path, s in zip(_OPTIONAL, found, strict=True) if not has[path]]
        max_model_len = whole_number(base.get("max_model_len"))
        if max_model_len is None:
            raise GiveUpError(f"{self._replica.name}: /v1/models does not tell max_model_len")
        return Capabilities(
            engine=str(base.get("owned_by") or "unknown"),
            version=str((version or {}).get("version") or "unknown"),
            models=tuple(str(model["id"]) for model in models),
            block_size=metrics.block_size,
            capacity_tokens=metrics.capacity_blocks * metrics.block_size,
            max_model_len=max_model_len,
            has_usage_details=None,
            has_runtime_adapters=adapters,
            has_prefix_reset=has["/reset_prefix_cache"],
            has_tokenize=has["/tokenize"],
            has_embeddings=has["/v1/embeddings"],
            has_kv_events=self._replica.kv_events_endpoint is not None,
            notes=tuple(absent),
        )

    async def report(self, *, deadline_s: float) -> EngineReport:
        """Return root from ``/v1/models`` and, in developer mode, dtype, quantisation and weights version."""
        base = self._base_model(await self._models(deadline_s))
        config = (await self._optional_json("/server_info?config_format=json", deadline_s)) or {}
        model_config = (config.get("vllm_config") or {}).get("model_config") if isinstance(config, Mapping) else None
        model_config = model_config if isinstance(model_config, Mapping) else {}
        weights = (await self._optional_json("/weight_info", deadline_s)) or {}
        version = weights.get("weight_version")
        dtype = model_config.get("dtype")
        return EngineReport(
            model=str(base["id"]),
            root=base.get("root"),
            dtype=str(dtype).removeprefix("torch.") if dtype else None,
            quantization=model_config.get("quantization"),
            weights_revision=version if version not in (None, "default") else model_config.get("revision"),
        )

    async def tokenize(self, body: PromptBody, model: str, *, deadline_s: float) -> list[int]:
        """Return the token ids of the rendered prompt; see :meth:`Engine.tokenize`."""
        if body.token_ids is not None:
            return list(body.token_ids)
        answer = await self._send("POST", "/tokenize", deadline_s, wire.tokenize_json(body, model))
        if refusals.is_route_missing(answer.status_code, answer.content):
            raise RejectItemError(Reason.ENGINE_REFUSED, f"{self._replica.name} has no /tokenize")
        tokens = self._checked(answer, "tokenize").get("tokens")
        if not isinstance(tokens, list):
            raise RejectItemError(Reason.ENGINE_REFUSED, f"{self._replica.name}: /tokenize sent no tokens")
        return tokens

    async def stream(self, request: GenerationRequest, *, deadline_s: float) -> AsyncGenerator[Chunk, None]:
        """Stream one generation; see :meth:`Engine.stream`."""
        end = asyncio.get_running_loop().time() + deadline_s
        what = f"generation on {self._replica.name}"
        path = wire.generation_path(request.body)
        message = self._client.build_request("POST", path, content=wire.generation_json(request), headers=_JSON)
        answer = await self._within(end, what, self._client.send(message, stream=True))
        try:
            if answer.status_code != 200:
                content = await self._within(end, what, answer.aread())
                raise refusals.error_of(answer.status_code, content, what, self._replica.api_key_env)
            lines = answer.aiter_lines()
            while (line := await self._within(end, what, anext(lines, None))) is not None:
                if line == "data: [DONE]":
                    return
                if not line.startswith("data:"):
                    continue
                piece = orjson.loads(line[5:])
                if "error" in piece:
                    status = whole_number((piece["error"] or {}).get("code")) or 500
                    raise refusals.error_of(status, orjson.dumps(piece), what, self._replica.api_key_env)
                chunk = wire.chunk_of(piece)
                if chunk is not None:
                    yield chunk
            raise RetryLaterError(f"{what}: the stream ended early")
        except orjson.JSONDecodeError:
            raise RetryLaterError(f"{what}: a piece of the stream is no JSON") from None
        finally:
            await answer.aclose()

    async def generate(self, request: GenerationRequest, *, deadline_s: float) -> Generation:
        """Run one generation to its end and measure it; times run from sending."""
        started = time.perf_counter()
        ttft_ms: float | None = None
        chunks: list[Chunk] = []
        async with aclosing(self.stream(request, deadline_s=deadline_s)) as stream:
            async for chunk in stream:
                if ttft_ms is None:
                    ttft_ms = (time.perf_counter() - started) * 1000
                chunks.append(chunk)
        latency_ms = (time.perf_counter() - started) * 1000
        usage = next((chunk for chunk in reversed(chunks) if chunk.prompt_tokens is not None), None)
        return Generation(
            text="".join(chunk.text for chunk in chunks),
            tokens=tuple(token for chunk in chunks for token in chunk.tokens),
            logprobs=tuple(value for chunk in chunks for value in chunk.logprobs),
            top_logprobs=tuple(top for chunk in chunks for top in chunk.top_logprobs),
            ttft_ms=latency_ms if ttft_ms is None else ttft_ms,
            latency_ms=latency_ms,
            prompt_tokens=usage.prompt_tokens if usage else None,
            cached_tokens=usage.cached_tokens if usage else None,
            completion_tokens=usage.completion_tokens if usage else None,
        )

    async def embed(self, texts: list[str], model: str, *, deadline_s: float) -> list[list[float]]:
        """Return one vector a text, in their order."""
        content = orjson.dumps({"model": model, "input": texts, "encoding_format": "float"})
        answer = await self._send("POST", "/v1/embeddings", deadline_s, content)
        if refusals.is_route_missing(answer.status_code, answer.content):
            raise RejectItemError(Reason.ENGINE_REFUSED, f"{self._replica.name} serves no embeddings")
        rows = sorted(self._checked(answer, "embeddings").get("data") or [], key=lambda row: row["index"])
        if len(rows) != len(texts):
            detail = f"{self._replica.name}: {len(rows)} embeddings for {len(texts)} texts"
            raise RejectItemError(Reason.ENGINE_REFUSED, detail)
        return [[float(value) for value in row["embedding"]] for row in rows]

    async def adapters(self, *, deadline_s: float) -> list[AdapterListing]:
        """Return the listed models that have a parent."""
        return [
            AdapterListing(name=str(model["id"]), root=model.get("root"), parent=model.get("parent"))
            for model in await self._models(deadline_s)
            if model.get("parent") is not None
        ]

    async def load_adapter(self, name: str, path: str, *, deadline_s: float) -> None:
        """Load an adapter; see :meth:`Engine.load_adapter`. Never in place: that leaves stale KV blocks behind."""
        end = asyncio.get_running_loop().time() + deadline_s
        content = orjson.dumps({"lora_name": name, "lora_path": path})
        answer = await self._send("POST", "/v1/load_lora_adapter", deadline_s, content)
        if answer.status_code == 200:
            return
        what = f"loading adapter {name!r} from {path!r} on {self._replica.name}"
        if not refusals.is_already_loaded(answer.status_code, answer.content):
            raise refusals.adapter_error(answer.status_code, answer.content, what, self._replica.api_key_env)
        left_s = max(end - asyncio.get_running_loop().time(), 0.0)
        listed = {adapter.name: adapter.root for adapter in await self.adapters(deadline_s=left_s)}
        if listed.get(name) != path:
            detail = f"{what}: listed is {listed.get(name)!r}"
            raise RejectItemError(Reason.ADAPTER_PATH_DIFFERS, detail)

    async def unload_adapter(self, name: str, *, deadline_s: float) -> None:
        """Unload an adapter; one that is not loaded counts as unloaded."""
        content = orjson.dumps({"lora_name": name})
        answer = await self._send("POST", "/v1/unload_lora_adapter", deadline_s, content)
        is_unknown = answer.status_code == 404 and not refusals.is_route_missing(404, answer.content)
        if answer.status_code != 200 and not is_unknown:
            what = f"unloading adapter {name!r} on {self._replica.name}"
            raise refusals.adapter_error(answer.status_code, answer.content, what, self._replica.api_key_env)

    async def metrics(self, *, deadline_s: float) -> EngineMetrics:
        """Scrape ``/metrics``; see :func:`parse_metrics`."""
        # A connection of its own each time: behind a balancing address every scrape may meet another process.
        answer = await self._send("GET", "/metrics", deadline_s, own=True)
        if answer.status_code != 200:
            what = f"metrics of {self._replica.name}"
            raise refusals.error_of(answer.status_code, answer.content, what, self._replica.api_key_env)
        return parse_metrics(answer.text)

    async def reset_prefix_cache(self, *, deadline_s: float) -> bool:
        """Reset the prefix cache; False when a running request holds blocks, or outside developer mode."""
        answer = await self._send("POST", "/reset_prefix_cache", deadline_s)
        if answer.status_code in (404, 405):
            return False
        return self._checked(answer, "prefix-cache reset").get("success") is True

    async def is_paused(self, *, deadline_s: float) -> bool | None:
        """Say whether the engine is paused; None outside developer mode, which is asked about once."""
        if self._tells_pause is False:
            return None
        answer = await self._send("GET", "/is_paused", deadline_s)
        self._tells_pause = answer.status_code not in (404, 405)
        if answer.status_code != 200:
            return None
        told = self._checked(answer, "is_paused").get("is_paused")
        return told if isinstance(told, bool) else None

    def kv_events(self) -> AsyncGenerator[KvEvent, None] | None:
        """Return the stream of KV events, or None where the replica names no endpoint."""
        endpoint = self._replica.kv_events_endpoint
        return kv_events.subscribe(endpoint) if endpoint is not None else None

    def kv_contents(self) -> AsyncGenerator[KvEvent, None] | None:
        """Return old and new KV events, or None where the replica does not name both endpoints."""
        live, replay = self._replica.kv_events_endpoint, self._replica.kv_events_replay_endpoint
        return kv_events.follow(live, replay) if live is not None and replay is not None else None

    async def aclose(self) -> None:
        """Close the connection pool."""
        await self._client.aclose()

    async def _models(self, deadline_s: float) -> list[Mapping[str, Any]]:
        answer = self._checked(await self._send("GET", "/v1/models", deadline_s), "model list")
        models = answer.get("data")
        if not isinstance(models, list) or not models:
            raise RetryLaterError(f"{self._replica.name}: /v1/models lists no model")
        return models

    def _base_model(self, models: list[Mapping[str, Any]]) -> Mapping[str, Any]:
        bases = [model for model in models if model.get("parent") is None]
        return next((model for model in bases if model["id"] == self._replica.model), bases[0] if bases else models[0])

    async def _status_of(self, path: str, deadline_s: float) -> int:
        """Return the status of a GET: no POST endpoint acts upon one, and 405 tells that it exists."""
        return (await self._send("GET", path, deadline_s)).status_code

    async def _has_runtime_adapters(self, deadline_s: float) -> bool | None:
        """Say whether adapters can be loaded, by unloading one without a name; None where the answer fits neither."""
        content = orjson.dumps({"lora_name": ""})
        answer = await self._send("POST", "/v1/unload_lora_adapter", deadline_s, content)
        if refusals.is_route_missing(answer.status_code, answer.content):
            return False
        return True if answer.status_code in (200, 400, 404) else None

    async def _optional_json(self, path: str, deadline_s: float) -> Mapping[str, Any] | None:
        answer = await self._send("GET", path, deadline_s)
        if answer.status_code != 200:
            return None
        try:
            body = orjson.loads(answer.content)
        except orjson.JSONDecodeError:
            return None
        return body if isinstance(body, Mapping) else None

    def _checked(self, answer: httpx.Response, what: str) -> Mapping[str, Any]:
        """Return the JSON object of a good answer, or raise what the refusal means."""
        what = f"{what} on {self._replica.name}"
        if answer.status_code != 200:
            raise refusals.error_of(answer.status_code, answer.content, what, self._replica.api_key_env)
        try:
            body = orjson.loads(answer.content)
        except orjson.JSONDecodeError:
            raise RetryLaterError(f"{what}: the answer is no JSON") from None
        if not isinstance(body, Mapping):
            raise RetryLaterError(f"{what}: the answer is no JSON object")
        return body

    async def _send(
        self, method: str, path: str, deadline_s: float, content: bytes | None = None, *, own: bool = False
    ) -> httpx.Response:
        end = asyncio.get_running_loop().time() + deadline_s
        headers = {**(_JSON if content is not None else {}), **({"connection": "close"} if own else {})}
        call = self._client.request(method, path, content=content, headers=headers)
        return await self._within(end, f"{method} {path.split('?', 1)[0]} on {self._replica.name}", call)

    async def _within(self, end: float, what: str, call: Awaitable[T]) -> T:
        """Await ``call`` until the loop's time ``end``; whatever the network does wrong may go better later."""
        try:
            async with asyncio.timeout_at(end):
                return await call
        except TimeoutError:
            raise RetryLaterError(f"{what}: no answer within the deadline") from None
        except (httpx.TransportError, httpx.StreamError) as error:
            raise RetryLaterError(f"{what}: {type(error).__name__}") from None
