"""Digests, keys, salts and serving identity: the only place that encodes any of them (spec 1.2 to 1.4).

Nothing here does I/O. Keys are built from percent-encoded components and digests are SHA-256 over canonical JSON
(RFC 8785), so ("a:b", "c") and ("a", "b:c") never meet.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Self
from urllib.parse import quote

import orjson
import rfc8785
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from warmup_tasks.errors import ConfigurationError

KEY_SCHEMA = "wt1"
NO_TENANT = "!none"  # "!" is encoded in every component, so no tenant and no replica can have these names
STORE = "!store"
NAMESPACES_KEY = f"{KEY_SCHEMA}:namespaces"
READINESS_PREFIX = f"{KEY_SCHEMA}:{{readiness}}:"
TOMBSTONE_PREFIX = f"{KEY_SCHEMA}:{{tombstones}}:"
SALT_MAX_CHARACTERS = 128
MAX_EXACT_INTEGER = 2**53 - 1
_PLAIN_OPTIONS = orjson.OPT_SORT_KEYS | orjson.OPT_STRICT_INTEGER
_SCALARS = frozenset({str, int, bool, type(None)})


def canonical_json(value: Any) -> bytes:
    """Return RFC 8785 JSON; an integer beyond 2^53, which that RFC cannot write, becomes ``{"!int": "its digits"}``.

    Raises:
        ConfigurationError: a value has no canonical form (NaN, half a surrogate pair, no end of depth).
    """
    try:
        if _is_plain(value):
            try:
                return orjson.dumps(value, option=_PLAIN_OPTIONS)
            except orjson.JSONEncodeError:
                pass  # a wide integer, half a surrogate pair, depth
        try:
            return bytes(rfc8785.dumps(value))
        except rfc8785.IntegerDomainError:
            return bytes(rfc8785.dumps(_with_wide_integers(value)))
    except (rfc8785.CanonicalizationError, UnicodeEncodeError, RecursionError) as error:
        raise ConfigurationError(f"a value has no canonical JSON form: {type(error).__name__}") from error


def _is_plain(value: Any) -> bool:
    """Say whether a value has only parts that orjson, thirty times as fast, writes as RFC 8785 does.

    Numbers with a fraction it writes in another form; keys it sorts by code point, which is the order of UTF-16 for
    ASCII.
    """
    kind = type(value)
    if kind is dict:
        for key, inner in value.items():
            if type(key) is not str or not key.isascii():
                return False
            if type(inner) not in _SCALARS and not _is_plain(inner):
                return False
        return True
    if kind is list or kind is tuple:
        return _SCALARS.issuperset(map(type, value)) or all(map(_is_plain, value))
    return kind in _SCALARS


def _with_wide_integers(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > MAX_EXACT_INTEGER:
        return {"!int": str(value)}
    if isinstance(value, Mapping):
        return {key: _with_wide_integers(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_with_wide_integers(inner) for inner in value]
    return value


def digest(value: Any) -> str:
    """Return the lowercase hex SHA-256 of the canonical JSON of ``value`` (64 characters)."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


def component(text: str) -> str:
    """Percent-encode one key component, keeping the unreserved characters of RFC 3986."""
    try:
        return quote(text, safe="")
    except UnicodeEncodeError:
        raise ConfigurationError("a key component holds half a surrogate pair: it is no text") from None


def prompt_digest(
    content: str | Sequence[Mapping[str, Any]] | Sequence[int],
    tools: Sequence[Mapping[str, Any]] | None = None,
    template_args: Mapping[str, Any] | None = None,
) -> str:
    """Return the digest of a prompt: {messages or prompt, tools, template arguments}, in their order (spec 1.2).

    Args:
        content: a completion prompt (text or token ids) or the list of chat messages.
        tools: tool definitions as sent, or None.
        template_args: chat-template arguments as sent, or None.
    """
    is_prompt = isinstance(content, str) or (len(content) > 0 and isinstance(content[0], int))
    field = "prompt" if is_prompt else "messages"
    whole = content if isinstance(content, str | list) else list(content)
    return digest({field: whole, "tools": list(tools or ()), "template_args": dict(template_args or ())})


class EvidenceSource(StrEnum):
    """How a field of the identity is verified, weakest first; a mere declaration is *unverified* (spec 1.3)."""

    UNVERIFIED = "unverified"
    REPORTED = "reported"
    OBSERVED = "observed"


class IdentityField(BaseModel):
    """One field of a serving identity with all three kinds of evidence; None means that source said nothing."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    declared: str | None = None
    reported: str | None = None
    observed: str | None = None

    @field_validator("declared", "reported", "observed", mode="before")
    @classmethod
    def _empty_says_nothing(cls, value: Any) -> Any:
        return value if value != "" else None

    @property
    def value(self) -> str | None:
        """The value that counts: declared names what ought to serve; without it, what was seen."""
        return self.declared or self.observed or self.reported

    @property
    def source(self) -> EvidenceSource:
        """The strongest evidence behind the field; a declaration that nothing verifies is ``unverified``."""
        if self.observed is not None:
            return EvidenceSource.OBSERVED
        if self.reported is not None:
            return EvidenceSource.REPORTED
        return EvidenceSource.UNVERIFIED

    @property
    def contradiction(self) -> str | None:
        """Say what contradicts, or None. All three sources speak on the scale of the declaration."""
        said = {name: v for name in ("declared", "reported", "observed") if (v := getattr(self, name)) is not None}
        if len(set(said.values())) <= 1:
            return None
        return ", ".join(f"{name} {value!r}" for name, value in said.items())


class ServingIdentity(BaseModel):
    """Everything that decides whether cached state is *right* (spec 0, 1.3).

    The digest covers values, not the evidence for them: evidence grows during a run, the namespace must not move.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str = Field(min_length=1)
    weights_revision: IdentityField = IdentityField()
    dtype: IdentityField = IdentityField()
    quantization: IdentityField = IdentityField()
    tokenizer_revision: IdentityField = IdentityField()
    chat_template_digest: IdentityField = IdentityField()
    adapter: str | None = Field(None, min_length=1)
    adapter_version: IdentityField = IdentityField()

    @model_validator(mode="after")
    def _adapter_has_version(self) -> Self:
        if self.adapter is not None and self.adapter_version.value is None:
            raise ValueError(f"adapter {self.adapter!r} needs adapter_version: name the version or the path's digest")
        if self.adapter is None and self.adapter_version != IdentityField():
            raise ValueError("adapter_version stands without an adapter: name the adapter too")
        return self

    def values(self) -> dict[str, str | None]:
        """Return field name → value that counts, model and adapter included."""
        return {
            name: field.value if isinstance(field, IdentityField) else field
            for name, field in ((name, getattr(self, name)) for name in type(self).model_fields)
        }

    def digest(self) -> str:
        """Return the identity's digest (64 hex characters)."""
        return digest(self.values())

    def evidence(self) -> dict[str, EvidenceSource]:
        """Return field name → strongest evidence, for the fields that carry any."""
        fields = ((name, getattr(self, name)) for name in type(self).model_fields)
        return {name: field.source for name, field in fields if isinstance(field, IdentityField)}

    def contradictions(self) -> list[str]:
        """Return one sentence per field whose sources disagree."""
        fields = ((name, getattr(self, name)) for name in type(self).model_fields)
        return [
            f"{name}: {field.contradiction}"
            for name, field in fields
            if isinstance(field, IdentityField) and field.contradiction
        ]

    def for_adapter(self, adapter: str, version: IdentityField) -> "ServingIdentity":
        """Return this base identity with an adapter on top; raises ``ValueError`` for a version that says nothing."""
        fields = {name: getattr(self, name) for name in type(self).model_fields}
        return type(self)(**{**fields, "adapter": adapter, "adapter_version": version})


class EmbedderIdentity(BaseModel):
    """What decides whether a stored embedding is right: the embedder, its revision, the domain lexicon (spec 1.2)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    embedder: str = Field(min_length=1)
    revision: str = Field(min_length=1)
    dimensions: int = Field(ge=1)
    lexicon_version: str = "none"

    def digest(self) -> str:
        """Return the identity's digest (64 hex characters)."""
        return digest(self.model_dump())


class SaltMode(StrEnum):
    """How a tenant's live requests salt the KV cache (spec 1.4)."""

    NONE = "none"
    AS_LOGGED = "as_logged"
    DERIVED = "derived"


def derived_salt(tenant: str, identity_digest: str, purpose: str = "live") -> str:
    """Return a salt for tenant and identity: hex only, 64 characters, so every engine accepts it.

    Args:
        tenant: as it stands in the log; empty is refused, since "no tenant" has no salt of its own.
        identity_digest: of the serving identity.
        purpose: ``live``, or a label for twins and controls, which must never meet live blocks.
    """
    if not tenant:
        raise ConfigurationError("an empty tenant has no derived salt: name the tenant, or use salt_mode 'none'")
    return digest({"salt": 1, "tenant": tenant, "identity": identity_digest, "purpose": purpose})


def check_salt(salt: str) -> None:
    r"""Raise ``ConfigurationError`` for a salt that vLLM refuses: empty, over 128 characters, or with ``@ / \ NUL``."""
    if not salt or len(salt) > SALT_MAX_CHARACTERS or any(c in salt for c in "@/\\\0"):
        raise ConfigurationError("cache_salt must have 1 to 128 characters and none of '@', '/', '\\', NUL: hash it")


def namespace(tenant: str | None, identity_digest: str) -> str:
    """Return the key prefix of one tenant at one identity; the braces keep a namespace on one Redis Cluster slot."""
    return f"{KEY_SCHEMA}:{{{component(tenant) if tenant else NO_TENANT}:{identity_digest[:32]}}}:"


def _digest_of(identity: ServingIdentity | EmbedderIdentity | str) -> str:
    return identity if isinstance(identity, str) else identity.digest()


def embedding_key(tenant: str | None, embedder: EmbedderIdentity | str, prompt_sha256: str) -> str:
    """Return the key of a prompt embedding (spec 1.2). ``embedder`` is the identity or its digest."""
    return f"{namespace(tenant, _digest_of(embedder))}emb:{prompt_sha256}"


def response_key(tenant: str | None, identity: ServingIdentity | str, prompt_sha256: str) -> str:
    """Return the key of a default response (spec 1.2). ``identity`` is the identity or its digest."""
    return f"{namespace(tenant, _digest_of(identity))}resp:{prompt_sha256}"


def adapter_key(identity: ServingIdentity) -> str:
    """Return the key of an adapter's registry entry (spec 1.2). ``identity`` carries the adapter."""
    if identity.adapter is None:
        raise ConfigurationError("an adapter key needs an identity with an adapter")
    return adapter_entry_key(identity.digest(), identity.model, identity.adapter)


def adapter_entry_key(identity_digest: str, model: str, adapter: str) -> str:
    """Return the key of an adapter's registry entry from the digest of the identity that carries it (spec 1.2)."""
    return f"{namespace(None, identity_digest)}lora:{component(model)}:{component(adapter)}"


def qa_key(tenant: str | None, identity: ServingIdentity | str, intent_hash: str) -> str:
    """Return the key of a frequent QA pair (spec 1.2). ``identity`` is the identity or its digest."""
    return f"{namespace(tenant, _digest_of(identity))}qa:{intent_hash}"


def mark_key(tenant: str | None, identity_digest: str, item_id: str, replica: str | None) -> str:
    """Return the key of a mark; ``replica`` None is the serving store itself."""
    return f"{namespace(tenant, identity_digest)}mark:{item_id}:{component(replica) if replica else STORE}"


def epoch_key(replica: str) -> str:
    """Return the key under which the agent publishes a replica's epoch and health.

    The braces keep what one script touches on one Redis Cluster slot: all keys of a replica, both of a lease.
    """
    return f"{KEY_SCHEMA}:epoch:{{{component(replica)}}}"


def readiness_key(model: str, replica: str) -> str:
    """Return the key of a replica's readiness record for one model."""
    return f"{READINESS_PREFIX}{component(model)}:{component(replica)}"


def tombstone_key(item_id: str) -> str:
    """Return the key that keeps an item out of every plan for as long as it lives."""
    return f"{TOMBSTONE_PREFIX}{component(item_id)}"


def lease_key(name: str) -> str:
    """Return the key of a lease that bounds concurrency on a shared resource."""
    return f"{KEY_SCHEMA}:lease:{{{component(name)}}}"


def queue_key(name: str, what: str) -> str:
    """Return the key of who waits for a lease: by when they ``arrived``, or by when they last ``asked``."""
    return f"{KEY_SCHEMA}:queue:{{{component(name)}}}:{what}"


def fence_key(name: str) -> str:
    """Return the key of the last fencing token that was handed out for a lease."""
    return f"{KEY_SCHEMA}:fence:{{{component(name)}}}"


def generation_key(replica: str) -> str:
    """Return the key that counts how often a replica lost its cache without a restart of its process."""
    return f"{KEY_SCHEMA}:generation:{{{component(replica)}}}"


def observation_key(replica: str) -> str:
    """Return the key of what the agent last saw of a replica, so that a restarted agent goes on from there."""
    return f"{KEY_SCHEMA}:observation:{{{component(replica)}}}"


def events_key() -> str:
    """Return the key of the stream of live events; the braces keep it beside what one script touches with it."""
    return f"{KEY_SCHEMA}:{{events}}:stream"


def announced_key() -> str:
    """Return the key that says which epoch of each replica was announced last."""
    return f"{KEY_SCHEMA}:{{events}}:announced"


def outcomes_key() -> str:
    """Return the key that counts what became of live events."""
    return f"{KEY_SCHEMA}:{{events}}:outcomes"


def reaction_key(replica: str) -> str:
    """Return the key of the last warm-up that an event set off on a replica."""
    return f"{KEY_SCHEMA}:reaction:{{{component(replica)}}}"


def identity_record_key(identity_digest: str) -> str:
    """Return the key under which an identity's fields are kept, for finding it again by model or revision."""
    return f"{KEY_SCHEMA}:identity:{identity_digest}"


def index_key(key_prefix: str) -> str:
    """Return the key of a namespace's index: the keys that live in it, by when they end."""
    return f"{key_prefix}index"


def is_permanent(key: str) -> bool:
    """Say whether a key may live without a TTL; every other key has one.

    Adapter entries end by invalidation only (spec 1.2); the list of namespaces is one key, trimmed at every write.
    """
    return key == NAMESPACES_KEY or re.match(rf"{KEY_SCHEMA}:\{{[^:}}]+:[0-9a-f]+\}}:lora:", key) is not None


def run_figures_key() -> str:
    """Return the key of the newest run's figures."""
    return f"{KEY_SCHEMA}:{{runs}}:newest"
