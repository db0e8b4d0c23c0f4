"""Looks up which replicas a fleet has now: addresses of a name, endpoints of a Kubernetes service.

One interface, :class:`Lookup`: a source in, (name, address) pairs out. A name follows from the address alone, or from
the pod, so a replica keeps it from run to run. Nothing here remembers; who asks when lies with the caller.
"""

import socket
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx

from warmup_tasks.errors import ConfigurationError, RetryLaterError
from warmup_tasks.fleet_file import FleetFile, ReplicaSpec
from warmup_tasks.fleet_sources import DnsSource, KubernetesSource, ReplicaSource

DEADLINE_S = 10.0
PAGE = 500

Found = list[tuple[str, str]]
"""Name behind the prefix, and host."""
Lookup = Callable[[Any], Found]
Resolve = Callable[[str], list[str]]
"""Returns the addresses of a host name; raises OSError where there are none."""


def addresses_of(host: str) -> list[str]:
    """Return all addresses of a host name, as the system resolves it, sorted."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return sorted({str(entry[4][0]) for entry in found})


def by_dns(source: DnsSource, resolve: Resolve = addresses_of) -> Found:
    """Return one replica an address.

    Raises:
        RetryLaterError: the name has no address now.
    """
    try:
        found = resolve(source.host)
    except OSError as error:
        raise RetryLaterError(f"discovery {source.prefix}: {source.host} has no address ({error})") from None
    return [(_word(address), f"[{address}]" if ":" in address else address) for address in found]


def by_kubernetes(source: KubernetesSource) -> Found:
    """Return one replica an endpoint of the service, ready or not, but none that is ending.

    Raises:
        ConfigurationError: the API refuses the token, or the files of the service account are not there.
        RetryLaterError: the API does not answer.
    """
    where = f"discovery {source.prefix}: {source.api_url}"
    path = f"/apis/discovery.k8s.io/v1/namespaces/{source.namespace}/endpointslices"
    query: dict[str, str | int] = {"labelSelector": f"kubernetes.io/service-name={source.service}", "limit": PAGE}
    slices: list[dict[str, Any]] = []
    try:
        token = Path(source.token_path).read_text(encoding="utf-8").strip()
        trusted: ssl.SSLContext | bool = True
        if source.api_url.startswith("https:"):
            trusted = ssl.create_default_context(cafile=source.ca_path)
        headers = {"Authorization": f"Bearer {token}"}
        with httpx.Client(base_url=source.api_url, headers=headers, timeout=DEADLINE_S, verify=trusted) as client:
            while True:
                answer = client.get(path, params=query)
                if answer.is_client_error:
                    raise ConfigurationError(
                        f"{where} answers {answer.status_code}: let the service account list endpointslices in "
                        f"{source.namespace!r}"
                    )
                page = answer.raise_for_status().json()
                slices += page["items"]
                if not (after := page.get("metadata", {}).get("continue")):
                    break
                query["continue"] = after
    except OSError as error:
        raise ConfigurationError(f"{where}: {error}") from None
    except (httpx.HTTPError, ValueError, KeyError) as error:
        raise RetryLaterError(f"{where} does not answer as expected ({type(error).__name__})") from None
    return sorted({pair for found in slices for pair in _endpoints(found)})


LOOKUPS: Mapping[str, Lookup] = {"dns": by_dns, "kubernetes": by_kubernetes}


def discover(fleet: FleetFile, lookups: Mapping[str, Lookup] = LOOKUPS) -> FleetFile:
    """Return the fleet with the replicas that its sources name now, and no source left.

    Args:
        fleet: as configured.
        lookups: kind of source → who looks it up.

    Raises:
        ConfigurationError: two replicas would share a name or an address.
        RetryLaterError: a source does not answer, or there is no replica at all.
    """
    if not fleet.discovery:
        return fleet
    found = [_replica(source, *pair) for source in fleet.discovery for pair in lookups[source.kind](source)]
    if not fleet.replicas and not found:
        raise RetryLaterError(f"no replica is up: {', '.join(source.prefix for source in fleet.discovery)} are empty")
    try:
        return FleetFile.model_validate(
            {**fleet.model_dump(), "replicas": [r.model_dump() for r in [*fleet.replicas, *found]], "discovery": []}
        )
    except ValueError as error:
        raise ConfigurationError(f"fleet: {error}") from None


def _replica(source: ReplicaSource, name: str, host: str) -> ReplicaSpec:
    return ReplicaSpec(
        name=f"{source.prefix}-{name}",
        url=f"{source.scheme}://{host}:{source.port}",
        profile=source.profile,
        model=source.model,
        api_key_env=source.api_key_env,
        tls=source.tls,
    )


def _endpoints(found: Mapping[str, Any]) -> Found:
    pairs: Found = []
    for endpoint in found.get("endpoints") or []:
        conditions = endpoint.get("conditions") or {}
        if not conditions.get("terminating"):
            address = str(endpoint["addresses"][0])  # Kubernetes: all addresses of an endpoint are one and the same
            name = str((endpoint.get("targetRef") or {}).get("name") or _word(address))
            pairs.append((name, f"[{address}]" if ":" in address else address))
    return pairs


def _word(address: str) -> str:
    return address.replace(".", "-").replace(":", "-")
