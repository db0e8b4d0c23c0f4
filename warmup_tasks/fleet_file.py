"""The fleet file: models, adapters, replicas, tenants and embedder as they are declared (spec 1.3, 1.4).

Frozen models and what follows from them alone. Where replicas come from besides, says ``fleet_sources.py``; what a
replica really is, the engines tell.
"""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from warmup_tasks.errors import ConfigurationError
from warmup_tasks.fleet_sources import DnsSource, KubernetesSource, TlsSpec
from warmup_tasks.identity import EmbedderIdentity, IdentityField, SaltMode, ServingIdentity, derived_salt
from warmup_tasks.settings import Strict, load_yaml


class AdapterSpec(Strict):
    """A LoRA adapter as the registry declares it; a new version has a new path."""

    name: str = Field(min_length=1)
    version: str = Field(min_length=1)
    path: str = Field(min_length=1, description="As the engine's host sees it.")
    base_model: str


class ModelSpec(Strict):
    """What is declared of a served model (spec 1.3)."""

    name: str = Field(min_length=1)
    weights_revision: str | None = None
    dtype: str | None = None
    quantization: str | None = None
    tokenizer_revision: str | None = None
    chat_template_digest: str | None = None

    def identity(self) -> ServingIdentity:
        """Return the declared base identity."""
        names = ("weights_revision", "dtype", "quantization", "tokenizer_revision", "chat_template_digest")
        declared = {name: IdentityField(declared=getattr(self, name)) for name in names}
        return ServingIdentity(model=self.name, **declared)


class ReplicaSpec(Strict):
    """One KV cache: an engine process behind its own address."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")
    url: str = Field(pattern=r"^https?://")
    profile: str
    model: str
    kv_events_endpoint: str | None = None
    kv_events_replay_endpoint: str | None = None
    api_key_env: str | None = Field(None, description="Name of the environment variable that holds the API key.")
    tls: TlsSpec | None = Field(None, description="For an https address; empty: as the system trusts.")
    gpu: str | None = Field(
        None, min_length=1, description="Name of the GPU that it shares with other replicas; empty: it has its own."
    )

    @property
    def turn(self) -> str:
        """What one task at a time works on: the replica, or the GPU that it shares."""
        return self.name if self.gpu is None else f"gpu:{self.gpu}"

    @field_validator("url")
    @classmethod
    def _address_alone(cls, url: str) -> str:
        return url.rstrip("/").removesuffix("/v1")


class TenantSpec(Strict):
    """What a tenant's contract says."""

    name: str = Field(min_length=1)
    salt_mode: SaltMode = SaltMode.NONE
    tenant_class: str = "standard"


class EmbedderEndpoint(Strict):
    """Where the fleet's embedder answers ``/v1/embeddings``, when it is neither the built-in one nor a replica."""

    url: str = Field(pattern=r"^https?://")
    api_key_env: str | None = Field(None, description="Name of the environment variable that holds the API key.")

    @field_validator("url")
    @classmethod
    def _address_alone(cls, url: str) -> str:
        return url.rstrip("/").removesuffix("/v1")


class FleetFile(Strict):
    """The fleet: models, adapters, replicas, tenants, embedder."""

    schema_version: Literal[1] = 1
    models: list[ModelSpec] = Field(min_length=1)
    replicas: list[ReplicaSpec] = Field([])
    discovery: list[Annotated[DnsSource | KubernetesSource, Field(discriminator="kind")]] = Field([])
    adapters: list[AdapterSpec] = Field([])
    tenants: list[TenantSpec] = Field([])
    embedder: EmbedderIdentity
    embedder_endpoint: EmbedderEndpoint | None = None

    @model_validator(mode="after")
    def _names_agree(self) -> Self:
        models = {model.name for model in self.models}
        if not self.replicas and not self.discovery:
            raise ValueError("replicas: list at least one, or say under discovery where they are found")
        problems = [
            f"discovery {s.prefix}: model {s.model!r} is not under models"
            for s in self.discovery
            if s.model not in models
        ]
        problems += [
            f"replica {r.name}: model {r.model!r} is not under models" for r in self.replicas if r.model not in models
        ]
        problems += [
            f"adapter {a.name}: base_model {a.base_model!r} is not under models"
            for a in self.adapters
            if a.base_model not in models
        ]
        problems += [
            f"adapter {a.name}: a model has that name too; engines list both under one"
            for a in self.adapters
            if a.name in models
        ]
        unique = {
            "model": [m.name for m in self.models],
            "replica": [r.name for r in self.replicas],
            "replica address": [r.url for r in self.replicas],
            "adapter": [a.name for a in self.adapters],
            "tenant": [t.name for t in self.tenants],
        }
        for what, names in unique.items():
            problems += [f"{what} {n!r} stands twice" for n in sorted({n for n in names if names.count(n) > 1})]
        if problems:
            raise ValueError("; ".join(problems))
        return self

    def replica(self, name: str) -> ReplicaSpec:
        """Return one replica, or raise ``ConfigurationError`` that lists the known names."""
        for replica in self.replicas:
            if replica.name == name:
                return replica
        raise ConfigurationError(f"no replica {name!r} in the fleet; known: {', '.join(r.name for r in self.replicas)}")

    def embedder_replica(self) -> ReplicaSpec | None:
        """Return who serves the embedder: its endpoint, else a replica of a model of that name, else None."""
        if self.embedder_endpoint is None:
            return next((replica for replica in self.replicas if replica.model == self.embedder.embedder), None)
        where = self.embedder_endpoint.model_dump()
        return ReplicaSpec(name="embedder", profile="embedder", model=self.embedder.embedder, **where)

    def model(self, name: str) -> ModelSpec:
        """Return one model, or raise ``ConfigurationError`` that lists the known names."""
        for model in self.models:
            if model.name == name:
                return model
        raise ConfigurationError(f"no model {name!r} in the fleet; known: {', '.join(m.name for m in self.models)}")

    def served_model(self, logged: str | None) -> str | None:
        """Return the fleet's name for the model that a log names, or None where the fleet does not serve it.

        A log without a model, or with the word ``default``, means the fleet's only model; with several models it means
        nothing.
        """
        names = [model.name for model in self.models]
        if logged in names:
            return logged
        return names[0] if logged in (None, "", "default") and len(names) == 1 else None

    def served(self, logged_model: str | None, logged_adapter: str | None) -> tuple[str, str | None] | None:
        """Return (model, adapter) under the fleet's names for what a log names, or None where the fleet serves no such.

        Engines serve adapters under their own names, so a log may give an adapter's name as the model.
        """
        named = self.adapter(logged_model or "") if logged_adapter is None else None
        if named is not None:
            return named.base_model, named.name
        model = self.served_model(logged_model)
        return None if model is None else (model, logged_adapter)

    def adapter(self, name: str) -> AdapterSpec | None:
        """Return the adapter of that name, or None: a log may name adapters that the registry no longer has."""
        return next((adapter for adapter in self.adapters if adapter.name == name), None)

    def identity(self, model: str, adapter: str | None = None) -> ServingIdentity:
        """Return the declared serving identity of a model, with the adapter on top where given."""
        base = self.model(model).identity()
        if adapter is None:
            return base
        spec = self.adapter(adapter)
        if spec is None:
            raise ConfigurationError(f"adapter {adapter!r} is not in the fleet file: add it with version and path")
        return base.for_adapter(spec.name, IdentityField(declared=spec.version))

    def tenant(self, name: str | None) -> TenantSpec:
        """Return the tenant's contract; unknown tenants get the default one."""
        known = next((tenant for tenant in self.tenants if tenant.name == name), None)
        return known or TenantSpec(name=name or "default")

    def live_salt(self, tenant: str | None, logged_salt: str | None, identity_digest: str) -> str | None:
        """Return the cache salt that the tenant's live requests send (spec 1.4); None is no salt.

        Args:
            tenant: as it stands in the log.
            logged_salt: as it stands in the log.
            identity_digest: of the serving identity, adapter included.

        Raises:
            ConfigurationError: salts are derived for a request without a tenant.
        """
        mode = self.tenant(tenant).salt_mode
        if mode is SaltMode.DERIVED:
            return derived_salt(tenant or "", identity_digest)
        return logged_salt if mode is SaltMode.AS_LOGGED else None


def load_fleet(path: str | Path) -> FleetFile:
    """Return the fleet file."""
    return load_yaml(path, FleetFile)
