"""Redis as installations run it: a cluster, a service behind a sentinel, TLS with its own authority. Real processes."""

import datetime as dt
import ipaddress
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import redis
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.support.redis_tools import tls_server
from warmup_tasks.local import processes
from warmup_tasks.local.redis_server import HOST, RedisServer, find_redis_binary

SLOTS = 16_384
SERVICE = "warm"
_UP_S = 20.0


@contextmanager
def redis_cluster(size: int = 3) -> Iterator[list[RedisServer]]:
    """A cluster of primaries, ready when each node says so."""
    with ExitStack() as stack:
        options = {"cluster-enabled": "yes", "cluster-node-timeout": "2000", "cluster-announce-ip": HOST}
        servers = [stack.enter_context(RedisServer(_port_with_bus(), options=options)) for _ in range(size)]
        clients = [stack.enter_context(redis.Redis(host=HOST, port=server.port)) for server in servers]
        for place, client in enumerate(clients):
            client.execute_command("CLUSTER ADDSLOTS", *range(SLOTS * place // size, SLOTS * (place + 1) // size))
            client.execute_command("CLUSTER MEET", HOST, str(servers[0].port))

        def is_up() -> bool:
            return all(_knows(client, size) for client in clients)

        process = servers[0]._process
        process.wait_until(is_up, _UP_S)
        yield servers


@contextmanager
def redis_behind_sentinel(folder: Path) -> Iterator[tuple[str, RedisServer, RedisServer]]:
    """A primary, its replica and a sentinel: yields the URL for ``connect`` and both servers."""
    with ExitStack() as stack:
        primary = stack.enter_context(RedisServer(options={"repl-diskless-sync-delay": "0"}))
        replica = stack.enter_context(RedisServer())
        with redis.Redis(host=HOST, port=replica.port) as client:
            client.replicaof(HOST, primary.port)
        port, config = processes.free_port(), folder / "sentinel.conf"
        config.write_text(
            f"port {port}\nbind {HOST}\ndir {folder}\n"
            f"sentinel monitor {SERVICE} {HOST} {primary.port} 1\n"
            f"sentinel down-after-milliseconds {SERVICE} 400\n"
            f"sentinel failover-timeout {SERVICE} 3000\n"
        )
        command = [find_redis_binary(), str(config), "--sentinel"]
        process = stack.enter_context(processes.start("the sentinel", command, folder / "sentinel.log"))
        client = stack.enter_context(redis.Redis(host=HOST, port=port))
        process.wait_until(lambda: _sees_replica(client), _UP_S)
        yield f"redis+sentinel://{HOST}:{port}/{SERVICE}?db=0", primary, replica


@contextmanager
def redis_with_tls(folder: Path) -> Iterator[tuple[str, RedisServer]]:
    """A server that takes TLS with client certificates: yields the URL for ``connect`` and the server.

    Raises:
        ConfigurationError: no server with TLS is there, and none can be installed.
    """
    authority, certificate, key = write_certificate(folder)
    port = processes.free_port()
    options = {
        "tls-port": str(port),
        "tls-cert-file": str(certificate),
        "tls-key-file": str(key),
        "tls-ca-cert-file": str(authority),
    }
    query = f"ssl_ca_certs={authority}&ssl_certfile={certificate}&ssl_keyfile={key}"
    with RedisServer(options=options, binary=tls_server(folder)) as server:
        yield f"rediss://{HOST}:{port}/0?{query}", server


def write_certificate(folder: Path) -> tuple[Path, Path, Path]:
    """Write a self-signed certificate for the loopback address: authority, certificate, key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "warmup tests")])
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(HOST))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    paths = folder / "tls.crt", folder / "tls.key"
    paths[0].write_bytes(certificate.public_bytes(pem))
    paths[1].write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
    return paths[0], *paths


def _port_with_bus() -> int:
    """Return a free port that leaves room for the cluster's own, which lies 10,000 higher."""
    while (port := processes.free_port()) > 55_000:
        pass
    return port


def _knows(client: redis.Redis, size: int) -> bool:
    info = client.execute_command("CLUSTER INFO")
    return info["cluster_state"] == "ok" and int(info["cluster_known_nodes"]) == size


def _sees_replica(client: redis.Redis) -> bool:
    try:
        return bool(client.sentinel_slaves(SERVICE)) and all(
            not replica["is_disconnected"] and replica["master-link-status"] == "ok"
            for replica in client.sentinel_slaves(SERVICE)
        )
    except redis.RedisError:
        return False
