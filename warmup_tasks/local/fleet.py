"""The engines of a local run, by kind: two doubles, two real vLLM servers, or servers that the user names.

Each function starts (or finds) the replicas, registers their end with the caller's stack and returns the fleet file.
Nothing here plans or warms.
"""

import json
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import yaml

from warmup_tasks.demand.embedder import default_embedder_identity
from warmup_tasks.engines.double.process import DoubleProcess, start_double
from warmup_tasks.errors import ConfigurationError, GiveUpError
from warmup_tasks.fleet_file import AdapterSpec, FleetFile, ModelSpec, ReplicaSpec
from warmup_tasks.identity import digest
from warmup_tasks.local.traffic import Traffic
from warmup_tasks.local.vllm_cpu import make_model, start_vllm
from warmup_tasks.settings import HardwareProfile

DEFAULT_MODEL = "demo-chat"
MAX_ADAPTERS = 2
DOUBLE_CONTEXT_TOKENS = 16_384
DOUBLES: dict[str, dict[str, Any]] = {
    "large": {"num_gpu_blocks": 6144, "latency": {"per_token_ms": 0.027, "overhead_ms": 2.0}},
    "small": {"num_gpu_blocks": 3072, "latency": {"per_token_ms": 0.054, "overhead_ms": 2.5}},
}
VLLM_CAPACITY_TOKENS = {"large": 98_304, "small": 65_536}
VLLM_HIDDEN, VLLM_LAYERS = 512, 8
FIND_DEADLINE_S = 10.0


def start_doubles(traffic: Traffic, folder: Path, stack: ExitStack) -> FleetFile:
    """Start a double of each profile; it serves the log's busiest model and lists the log's adapters when loaded."""
    found, doubles = many_doubles(traffic, folder, 1)
    for double in doubles.values():
        stack.callback(double.stop)
    return found


def many_doubles(traffic: Traffic, folder: Path, per_profile: int) -> tuple[FleetFile, dict[str, DoubleProcess]]:
    """Start so many doubles of each profile; return the fleet file and the processes by replica, for the caller to end.

    Raises:
        RetryLaterError: one did not start; those before it are ended.
    """
    model = _model_of(traffic)
    adapters = [_write_adapter(folder / "adapters", name) for name in traffic.adapters[:MAX_ADAPTERS]]
    shared: dict[str, Any] = {"model": model, "max_model_len": DOUBLE_CONTEXT_TOKENS, "block_size": 16}
    names = [(f"{profile}-{number}", profile) for profile in DOUBLES for number in range(per_profile)]
    with ExitStack() as until_all_run:
        doubles: dict[str, DoubleProcess] = {}
        for name, profile in names:
            doubles[name] = start_double(developer_mode=True, **shared, **DOUBLES[profile])
            until_all_run.callback(doubles[name].stop)
        until_all_run.pop_all()
    replicas = [(name, doubles[name].url, profile) for name, profile in names]
    return _fleet(model, "bfloat16", replicas, adapters, traffic), doubles


def start_again(double: DoubleProcess) -> DoubleProcess:
    """Start a double that ended once more, empty, at its old address."""
    settings = double.config.model_dump(exclude={"port", "fd", "exit_with_parent"})
    return start_double(double.config.port, **settings)


def start_real(traffic: Traffic, folder: Path, stack: ExitStack) -> FleetFile:
    """Start a real vLLM of each profile on this CPU, with a small model that is made on the spot."""
    model = _model_of(traffic)
    made = make_model(folder / f"llama-{VLLM_HIDDEN}x{VLLM_LAYERS}", VLLM_HIDDEN, VLLM_LAYERS)
    paths = [path for name, path in made.adapters.items() if "rank16" not in name]
    adapters = list(zip(traffic.adapters, paths, strict=False))
    servers = []
    for profile, capacity in VLLM_CAPACITY_TOKENS.items():
        log = folder / f"vllm-{profile}.log"
        server = start_vllm(made, model, log, capacity_tokens=capacity, wait_s=None)
        stack.callback(server.stop)
        servers.append((f"{profile}-0", server, profile))
    for _, server, _ in servers:
        server.wait_until_up()
    replicas = [(name, server.url, profile) for name, server, profile in servers]
    return _fleet(model, "float32", replicas, adapters, traffic)


def find_servers(urls: Sequence[str], profiles: Sequence[HardwareProfile], traffic: Traffic) -> FleetFile:
    """Return the fleet of servers that run already; each address may end in ``@profile``, the first one is the default.

    Raises:
        GiveUpError: a server does not list its models.
        ConfigurationError: the servers serve different models, or a profile is unknown.
    """
    known = [profile.name for profile in profiles]
    replicas: list[tuple[str, str, str]] = []
    models: set[str] = set()
    adapters: dict[str, Path] = {}
    for number, address in enumerate(urls):
        url, _, profile = address.partition("@")
        if profile and profile not in known:
            raise ConfigurationError(f"{address}: no profile {profile!r}; known: {', '.join(known)}")
        listed = _listed(url.rstrip("/"))
        models |= {row["id"] for row in listed if not row.get("parent")}
        adapters |= {row["id"]: Path(row["root"]) for row in listed if row.get("parent") and row.get("root")}
        host = urlsplit(url).netloc.replace(":", "-")
        replicas.append((f"{host}-{number}", url.rstrip("/"), profile or known[0]))
    if len(models) != 1:
        raise ConfigurationError(f"the servers serve {sorted(models)}: a local run takes replicas of one model")
    return _fleet(models.pop(), None, replicas, list(adapters.items()), traffic)


def write_fleet(found: FleetFile, path: Path) -> None:
    """Write a fleet file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(found.model_dump(mode="json"), sort_keys=False), encoding="utf-8")


def _model_of(traffic: Traffic) -> str:
    return next((name for name in traffic.models if name != "default"), DEFAULT_MODEL)


def _fleet(
    model: str,
    dtype: str | None,
    replicas: Sequence[tuple[str, str, str]],
    adapters: Sequence[tuple[str, Path]],
    traffic: Traffic,
) -> FleetFile:
    return FleetFile(
        models=[ModelSpec(name=model, weights_revision="r1", dtype=dtype)],
        replicas=[ReplicaSpec(name=name, url=url, profile=profile, model=model) for name, url, profile in replicas],
        adapters=[
            AdapterSpec(name=name, version=digest(str(path))[:12], path=str(path), base_model=model)
            for name, path in adapters
        ],
        tenants=traffic.tenants,
        embedder=default_embedder_identity(),
    )


def _write_adapter(folder: Path, name: str) -> tuple[str, Path]:
    """Write a PEFT folder that the double reads: its rank, and bytes that stand for weights."""
    path = (folder / digest(name)[:12]).resolve()
    path.mkdir(parents=True, exist_ok=True)
    (path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 8}), encoding="utf-8")
    (path / "adapter_model.safetensors").write_bytes(digest({"weights of": name}).encode())
    return name, path


def _listed(url: str) -> list[dict[str, str]]:
    try:
        answer = httpx.get(f"{url}/v1/models", timeout=FIND_DEADLINE_S)
        answer.raise_for_status()
        return list(answer.json()["data"])
    except (httpx.HTTPError, ValueError, KeyError) as error:
        raise GiveUpError(f"{url} does not list its models at /v1/models ({type(error).__name__})") from None
