"""Who is in the fleet: by DNS, by a Kubernetes API over real HTTP, once for a run; keys and TLS towards engines."""

import asyncio
import json
import ssl
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.redis_topologies import write_certificate
from warmup_tasks.agent.members import MemberWatch
from warmup_tasks.demand.embedder import default_embedder_identity
from warmup_tasks.engines.connect import open_engine
from warmup_tasks.engines.discovery import addresses_of, by_dns, by_kubernetes, discover
from warmup_tasks.errors import ConfigurationError, RetryLaterError
from warmup_tasks.fleet_file import FleetFile, ModelSpec, ReplicaSpec
from warmup_tasks.fleets import fleet_of, present_fleet, record_fleet
from warmup_tasks.local.fleet import write_fleet
from warmup_tasks.runs import Run
from warmup_tasks.settings import RunRequest, Site

ALIKE: dict[str, Any] = {"prefix": "a100", "profile": "large", "model": "m"}
DNS = {"kind": "dns", "host": "vllm.ml.svc", **ALIKE}


def fleet(**more: Any) -> FleetFile:
    return FleetFile(**{"models": [ModelSpec(name="m")], "embedder": default_embedder_identity(), **more})


def test_a_name_has_one_replica_an_address_with_a_name_that_stays():
    found = discover(
        fleet(discovery=[DNS]), {"dns": lambda s: by_dns(s, lambda _: ["10.0.0.7", "10.0.0.8", "fd00::1"])}
    )
    assert [(r.name, r.url) for r in found.replicas] == [
        ("a100-10-0-0-7", "http://10.0.0.7:8000"),
        ("a100-10-0-0-8", "http://10.0.0.8:8000"),
        ("a100-fd00--1", "http://[fd00::1]:8000"),
    ]
    assert (found.discovery, found.replicas[0].profile, found.replicas[0].model) == ([], "large", "m")


def test_the_system_resolves_names():
    assert "127.0.0.1" in addresses_of("localhost")


def test_a_name_without_an_address_is_tried_later():
    def nowhere(_: str) -> list[str]:
        raise OSError("no such host")

    with pytest.raises(RetryLaterError, match=r"vllm\.ml\.svc has no address"):
        discover(fleet(discovery=[DNS]), {"dns": lambda s: by_dns(s, nowhere)})


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({}, "replicas: list at least one"),
        ({"discovery": [{**DNS, "model": "other"}]}, "discovery a100: model 'other'"),
        ({"discovery": [{**DNS, "kind": "consul"}]}, "consul"),
        ({"discovery": [{**DNS, "tls": {"key_path": "/k"}}]}, "cert_path"),
    ],
)
def test_a_wrong_source_is_refused_by_its_field(more, message):
    with pytest.raises(ValueError, match=message):
        fleet(**more)


def test_two_sources_never_share_a_name():
    twice = fleet(discovery=[DNS, {**DNS, "port": 9000}])
    with pytest.raises(ConfigurationError, match="stands twice"):
        discover(twice, {"dns": lambda s: by_dns(s, lambda _: ["10.0.0.7"])})


def endpoint(name: str, address: str, **conditions: bool) -> dict[str, Any]:
    return {"addresses": [address], "conditions": conditions, "targetRef": {"kind": "Pod", "name": name}}


class Api(BaseHTTPRequestHandler):
    """Two pages of endpoint slices, for those who bring the token."""

    seen: list[str]

    def do_GET(self) -> None:
        self.server.seen.append(self.path)
        is_known = self.headers["Authorization"] == "Bearer secret"
        first = endpoint("vllm-0", "10.0.0.7", ready=True), endpoint("vllm-1", "10.0.0.8", ready=False, serving=False)
        second = [endpoint("vllm-2", "10.0.0.9", terminating=True), {"addresses": ["10.0.0.10"]}]
        is_second = "continue=more" in self.path
        page = {
            "metadata": {} if is_second else {"continue": "more"},
            "items": [{"endpoints": second if is_second else first}],
        }
        self.send_response(200 if is_known else 403)
        self.end_headers()
        self.wfile.write(json.dumps(page).encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def api(tmp_path: Path) -> Iterator[dict[str, Any]]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Api)
    server.seen = []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    token = tmp_path / "token"
    token.write_text("secret\n")
    where = {"api_url": f"http://127.0.0.1:{server.server_port}", "token_path": str(token)}
    yield {"kind": "kubernetes", "service": "vllm", "namespace": "ml", **ALIKE, **where, "seen": server.seen}
    server.shutdown()
    server.server_close()


def test_a_service_s_endpoints_are_replicas_ready_or_not(api):
    seen = api.pop("seen")
    found = discover(fleet(discovery=[api]))
    assert [(r.name, r.url) for r in found.replicas] == [
        ("a100-10-0-0-10", "http://10.0.0.10:8000"),
        ("a100-vllm-0", "http://10.0.0.7:8000"),
        ("a100-vllm-1", "http://10.0.0.8:8000"),
    ], "one that ends is none, one that is not ready yet is to be warmed"
    assert seen[0].startswith("/apis/discovery.k8s.io/v1/namespaces/ml/endpointslices?")
    assert "service-name%3Dvllm" in seen[0]


def test_a_refused_token_is_named_and_a_silent_api_is_tried_later(api, tmp_path):
    api.pop("seen")
    source = fleet(discovery=[api]).discovery[0]
    (tmp_path / "token").write_text("other")
    with pytest.raises(ConfigurationError, match="403: let the service account list endpointslices"):
        by_kubernetes(source)
    with pytest.raises(RetryLaterError, match="ConnectError"):
        by_kubernetes(source.model_copy(update={"api_url": "http://127.0.0.1:1"}))
    with pytest.raises(ConfigurationError, match="No such file"):
        by_kubernetes(source.model_copy(update={"token_path": "/nowhere/token"}))


def test_all_tasks_of_a_run_see_the_members_of_its_first_step(tmp_path):
    path = tmp_path / "fleet.yaml"
    site = Site(lake_uri=str(tmp_path / "lake"), redis_url="redis://x", fleet_path=str(path), profiles_path="")
    run = Run.of(RunRequest(as_of=datetime(2026, 11, 27, 2, tzinfo=UTC)))
    one = fleet(replicas=[ReplicaSpec(name="a", url="http://a", profile="large", model="m")])
    two = fleet(replicas=[*one.replicas, ReplicaSpec(name="b", url="http://b", profile="large", model="m")])
    write_fleet(one, path)
    assert fleet_of(site, run) == one == record_fleet(site, run)
    write_fleet(two, path)
    assert (fleet_of(site, run), present_fleet(site)) == (one, two)
    assert record_fleet(site, run) == two == fleet_of(site, run), "cleared from its first step on, it looks again"


async def test_the_agent_hears_that_members_came_and_keeps_them_while_nobody_answers():
    one = fleet(replicas=[ReplicaSpec(name="a", url="http://a", profile="large", model="m")])
    two = fleet(replicas=[*one.replicas, ReplicaSpec(name="b", url="http://b", profile="large", model="m")])
    looks: list[FleetFile | Exception] = [RetryLaterError("away"), one, two]

    def look() -> FleetFile:
        found = looks.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    changed: list[FleetFile] = []
    await asyncio.wait_for(MemberWatch(one, look, 0.001, changed.append).run(asyncio.Event()), 5)
    assert (changed, looks) == ([two], [])


class Models(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.server.keys.append(self.headers.get("authorization"))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"data": []}')

    def log_message(self, *_: object) -> None:
        pass


async def test_an_engine_behind_tls_sees_our_certificate_and_key(tmp_path, monkeypatch):
    authority, certificate, key = write_certificate(tmp_path)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Models)
    server.keys = []
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority))
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("ENGINE_KEY", "k")
    files = {"ca_path": str(authority), "cert_path": str(certificate), "key_path": str(key)}
    where = {"name": "a", "url": f"https://127.0.0.1:{server.server_port}", "profile": "large", "model": "m"}
    try:
        async with open_engine(ReplicaSpec(**where, tls=files, api_key_env="ENGINE_KEY")) as engine:
            assert (await engine._client.get("/v1/models", timeout=5)).status_code == 200
        assert server.keys == ["Bearer k"]
        async with open_engine(ReplicaSpec(**where, api_key_env="ENGINE_KEY")) as engine:
            with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
                await engine._client.get("/v1/models", timeout=5)
    finally:
        server.shutdown()
        server.server_close()
    with pytest.raises(ConfigurationError, match="replica a: tls"):
        open_engine(ReplicaSpec(**where, tls={"ca_path": "/nowhere/ca.pem"}, api_key_env="ENGINE_KEY"))
