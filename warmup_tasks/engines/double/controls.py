"""Endpoints that change a replica's state: the engine's developer mode, and the double's own.

Here live reset, sleep, pause and server info as vLLM offers them in developer mode, and ``/double/*``: faults, state,
residency of a prompt, restart in place, new weights.
"""

from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any

from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from warmup_tasks.engines.double.core import Core, PauseMode
from warmup_tasks.engines.double.generation import resolve_model
from warmup_tasks.engines.double.wire import ApiError, json_response, read_json

_MODES: dict[str, PauseMode] = {"abort": "abort", "wait": "wait", "keep": "keep"}
_TRUE = frozenset({"1", "true", "yes", "on"})


class _Developer:
    def __init__(self, core: Core) -> None:
        self._core = core

    async def reset_prefix_cache(self, request: Request) -> Response:
        is_reset = self._core.reset_prefix_cache(reset_running=_flag(request, "reset_running_requests", default=False))
        return json_response({"success": is_reset})

    async def sleep(self, request: Request) -> Response:
        level = request.query_params.get("level", "1")
        if level not in ("0", "1", "2"):
            raise _bad_query("level")
        await self._core.sleep(int(level), _mode(request))
        return json_response({"status": "sleeping", "level": int(level)})

    async def wake_up(self, request: Request) -> Response:
        self._core.wake()
        return json_response({"status": "awake", "tags": request.query_params.getlist("tags") or None})

    async def is_sleeping(self, _: Request) -> Response:
        return json_response({"is_sleeping": self._core.is_sleeping})

    async def pause(self, request: Request) -> Response:
        await self._core.pause(_mode(request), clear_cache=_flag(request, "clear_cache", default=True))
        return json_response({"status": "paused"})

    async def resume(self, _: Request) -> Response:
        self._core.scheduler.resume()
        return json_response({"status": "resumed"})

    async def is_paused(self, _: Request) -> Response:
        return json_response({"is_paused": self._core.scheduler.is_paused})

    async def weight_info(self, _: Request) -> Response:
        return json_response({"weight_version": self._core.weight_label})

    async def update_weight_version(self, request: Request) -> Response:
        body = await read_json(request)
        self._core.weight_label = str(body["new_version"])
        return json_response({"success": True, "new_version": self._core.weight_label})

    async def server_info(self, request: Request) -> Response:
        config = self._core.config
        model = {
            "model": config.model_path,
            "tokenizer": config.model_path,
            "dtype": f"torch.{config.dtype}",
            "revision": None,
            "quantization": config.quantization,
            "max_model_len": config.max_model_len,
            "served_model_name": config.model,
        }
        cache = {"block_size": config.block_size, "num_gpu_blocks": config.num_gpu_blocks}
        told: Any = {"model_config": model, "cache_config": cache}
        if request.query_params.get("config_format", "text") == "text":
            told = ", ".join(f"{name}={value!r}" for name, value in model.items())
        environment = {"VLLM_SERVER_DEV_MODE": True, "VLLM_ALLOW_RUNTIME_LORA_UPDATING": config.runtime_adapters}
        return json_response({"vllm_config": told, "vllm_env": environment, "system_env": {}})


class _Controls:
    def __init__(self, core: Core) -> None:
        self._core = core

    async def state(self, _: Request) -> Response:
        return json_response(self._state())

    async def set_faults(self, request: Request) -> Response:
        try:
            faults = self._core.faults.update(await read_json(request))
        except (ValidationError, TypeError) as error:
            raise ApiError(HTTPStatus.UNPROCESSABLE_ENTITY, str(error)) from error
        return json_response(faults.model_dump())

    async def restore_faults(self, _: Request) -> Response:
        return json_response(self._core.faults.restore().model_dump())

    async def residency(self, request: Request) -> Response:
        body = await read_json(request)
        adapter = resolve_model(self._core, body.get("model"))
        seen = self._core.residency(body["prompt"], adapter, body.get("cache_salt"))
        return json_response(seen._asdict())

    async def restart(self, _: Request) -> Response:
        await self._core.restart()
        return json_response(self._state())

    async def weights(self, request: Request) -> Response:
        self._core.revision = str((await read_json(request))["revision"])
        return json_response(self._state())

    def _state(self) -> dict[str, Any]:
        core = self._core
        return {
            "process_start_s": core.metrics.process_start_s,
            "weights_revision": core.revision,
            "faults": core.faults.now.model_dump(),
            "faults_struck": dict(core.faults.struck),
            "blocks": {
                "capacity": core.pool.capacity,
                "held": core.pool.held_count,
                "free": core.pool.free_count,
                "cached": core.pool.cached_count,
            },
            "computed_prompt_tokens": core.scheduler.computed_prompt_tokens,
            "running": len(core.scheduler.running),
            "waiting": len(core.scheduler.waiting),
            "is_paused": core.scheduler.is_paused,
            "sleep_level": core.sleep_level,
            "adapters": {adapter.name: adapter.path for adapter in core.adapters.listing()},
            "kv_events_endpoint": core.kv_events.endpoint,
        }


def developer_routes(core: Core) -> list[Route]:
    """Return the routes that exist in developer mode only."""
    developer = _Developer(core)
    get = {
        "/server_info": developer.server_info,
        "/is_sleeping": developer.is_sleeping,
        "/is_paused": developer.is_paused,
        "/weight_info": developer.weight_info,
    }
    post = {
        "/reset_prefix_cache": developer.reset_prefix_cache,
        "/sleep": developer.sleep,
        "/wake_up": developer.wake_up,
        "/pause": developer.pause,
        "/resume": developer.resume,
        "/update_weight_version": developer.update_weight_version,
    }
    return _routes(get, "GET") + _routes(post, "POST")


def control_routes(core: Core) -> list[Route]:
    """Return the double's own routes, which no engine has."""
    controls = _Controls(core)
    return [
        *_routes({"/double/state": controls.state}, "GET"),
        *_routes({"/double/faults": controls.restore_faults}, "DELETE"),
        *_routes(
            {
                "/double/faults": controls.set_faults,
                "/double/residency": controls.residency,
                "/double/restart": controls.restart,
                "/double/weights": controls.weights,
            },
            "POST",
        ),
    ]


def _routes(handlers: Mapping[str, Callable[[Request], Awaitable[Response]]], method: str) -> list[Route]:
    return [Route(path, handler, methods=[method]) for path, handler in handlers.items()]


def _flag(request: Request, name: str, *, default: bool) -> bool:
    value = request.query_params.get(name)
    return default if value is None else value.lower() in _TRUE


def _mode(request: Request) -> PauseMode:
    mode = _MODES.get(request.query_params.get("mode", "abort"))
    if mode is None:
        raise _bad_query("mode")
    return mode


def _bad_query(name: str) -> ApiError:
    message = f"1 validation error:\n  {{'loc': 'query.{name}', 'msg': 'Input is not valid'}}"
    return ApiError(HTTPStatus.BAD_REQUEST, message, kind="Bad Request", param=f"query.{name}")
