"""Where a fleet's replicas are found and how one may speak to them: the part of the fleet file that a cluster fills in.

Types alone. They are looked up in ``engines/discovery.py``, the rest of the fleet file in ``fleet_file.py``.
"""

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

_TOKEN = "/var/run/secrets/kubernetes.io/serviceaccount"  # noqa: S105  # a folder


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TlsSpec(_Strict):
    """Files for TLS towards an engine, readable on every worker and for the agent."""

    ca_path: str | None = Field(
        None, description="What the engine's certificate is checked against; empty: the system's."
    )
    cert_path: str | None = Field(None, description="Our own certificate, where the engine asks for one.")
    key_path: str | None = Field(None, description="Its private key, where that is another file.")

    @model_validator(mode="after")
    def _key_needs_certificate(self) -> Self:
        if self.key_path and not self.cert_path:
            raise ValueError("key_path: name the certificate that belongs to it in cert_path")
        return self


class ReplicaSource(_Strict):
    """Where replicas of one model and profile are looked up when a run begins; they are alike but for their address."""

    prefix: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", description="Their names begin so.")
    port: int = Field(8000, ge=1, le=65_535)
    scheme: Literal["http", "https"] = "http"
    profile: str
    model: str
    api_key_env: str | None = Field(None, description="Name of the environment variable that holds their API key.")
    tls: TlsSpec | None = Field(None, description="For https; empty: as the system trusts.")


class DnsSource(ReplicaSource):
    """A name with one address a replica, such as that of a headless service."""

    kind: Literal["dns"] = "dns"
    host: str = Field(min_length=1)


class KubernetesSource(ReplicaSource):
    """The endpoints of a Kubernetes service, those that are not ready yet included: warming makes them ready."""

    kind: Literal["kubernetes"] = "kubernetes"
    service: str = Field(min_length=1)
    namespace: str = "default"
    api_url: str = Field("https://kubernetes.default.svc", pattern=r"^https?://")
    token_path: str = f"{_TOKEN}/token"
    ca_path: str = f"{_TOKEN}/ca.crt"
