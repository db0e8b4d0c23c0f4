"""The vocabulary of the data: item, plan row, receipt, evidence, mark, feedback (spec 0).

Each type that is stored carries a schema version; ``lake/schemas.py`` derives the Parquet columns from these models and
``docs/contracts.md`` lists them. Here live types and their pure rules, no I/O. A new item kind is a member of
:class:`ItemKind`, its row in :data:`KINDS`, and one file in ``warming/``.
"""

from datetime import datetime
from enum import StrEnum
from functools import cache
from typing import Any, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from warmup_tasks.identity import digest

PLAN_SCHEMA = 1
RECEIPT_SCHEMA = 1
MARK_SCHEMA = 1
FEEDBACK_SCHEMA = 1


class ItemKind(StrEnum):
    """What can be warm."""

    EMBEDDING = "embedding"
    ADAPTER = "adapter"
    KV_PREFIX = "kv_prefix"
    RESPONSE = "response"
    QA_PAIR = "qa_pair"


class KindRules(NamedTuple):
    """What the rest of the system needs to know about a kind."""

    wave: int
    order_in_wave: int
    is_per_replica: bool
    ttl_s: int | None


KINDS: dict[ItemKind, KindRules] = {
    ItemKind.EMBEDDING: KindRules(wave=0, order_in_wave=0, is_per_replica=False, ttl_s=24 * 3600),
    ItemKind.ADAPTER: KindRules(wave=1, order_in_wave=0, is_per_replica=True, ttl_s=None),
    ItemKind.RESPONSE: KindRules(wave=2, order_in_wave=0, is_per_replica=False, ttl_s=12 * 3600),
    ItemKind.QA_PAIR: KindRules(wave=2, order_in_wave=1, is_per_replica=False, ttl_s=7 * 24 * 3600),
    ItemKind.KV_PREFIX: KindRules(wave=3, order_in_wave=0, is_per_replica=True, ttl_s=None),
}
"""Waves by depth in the dependency graph (spec 2.2). Answers are generated before the KV prefixes are loaded, since
generating writes into the same cache and would evict what was just warmed."""

WAVES: tuple[int, ...] = tuple(sorted({rules.wave for rules in KINDS.values()}))


class Outcome(StrEnum):
    """What happened to one item on one replica."""

    WARMED = "warmed"
    SKIPPED = "skipped"
    REJECTED = "rejected"
    FAILED = "failed"


class Reason(StrEnum):
    """Why an item was skipped, rejected or failed; each value is a sentence fragment for people."""

    NOT_WARMABLE = "not warmable: shorter than one block"
    TOO_LONG = "too long for the model's context"
    VOLATILE_HEAD = "volatile head"
    STALE_DATE = "date in the prompt has passed"
    OVER_CAPACITY = "over capacity"
    ANSWER_LIMIT = "beyond the run's limit of answers"
    HOLDOUT = "held out to measure the effect"
    TOMBSTONED = "taken out by an operator"
    SUPERSEDED = "a newer plan has warmed its replica"
    DEPENDENCY_FAILED = "a dependency failed"
    SALT_NOT_IN_TRAFFIC = "traffic sends no such salt"
    SALT_UNEXPECTED = "the request is salted, but the tenant's salt_mode is none"
    ADAPTER_UNKNOWN = "the fleet file does not list the adapter"
    TRUNCATED_PROMPT = "the log holds only part of the prompt"
    ENGINE_REFUSED = "the engine refused"
    ENGINE_UNAVAILABLE = "the engine did not answer"
    ADAPTER_UPDATES_OFF = "runtime adapter updates are switched off"
    ADAPTER_PATH_DIFFERS = "the engine lists another path"
    ADAPTER_STALE_PATH = "adapter weights changed under the same path"
    LIVE_TRAFFIC = "live traffic left no room"
    EPOCH_CHANGED = "the replica's epoch changed"
    EPOCH_UNKNOWN = "the replica's epoch is unknown"
    IDENTITY_CONTRADICTED = "the serving identity is contradicted"
    IDENTITY_UNVERIFIED = "a required field of the serving identity is unverified"
    RESIDENCY_MISS = "not resident: the probe missed"
    RESIDENCY_UNVERIFIED = "residency unverified: the engine did not say"
    MAYBE_EVICTED = "resident when probed, but perhaps evicted since"
    ANSWER_DIFFERS = "the warm answer differs from the twin's"
    CONTROL_HIT = "the control with another salt hit: salts are ignored"
    SLOWER_THAN_COLD = "warm is not faster than cold"
    STRATUM_FAILED = "its stratum failed"
    SERVING_STORE = "the serving store refused"
    DIMENSION_MISMATCH = "the embedding has another dimension"


class EvidenceKind(StrEnum):
    """What a residency statement rests on."""

    NONE = "none"
    CACHED_TOKENS = "cached_tokens"
    COUNTER_DELTA = "counter_delta"
    KV_EVENTS = "kv_events"
    ADAPTER_LISTING = "adapter_listing"
    STORED_VALUE = "stored_value"


class Residency(StrEnum):
    """The state of an item by its first probe: null is not 0, so *unverified* is not *miss* (spec 6.5)."""

    HIT = "hit"
    MISS = "miss"
    UNVERIFIED = "unverified"


class GainBasis(StrEnum):
    """Whether an item's gain was measured against its own twin or inferred from its stratum (spec 6.5d)."""

    MEASURED = "measured"
    INFERRED = "inferred"
    NONE = "none"


class Arm(StrEnum):
    """The arm that the planner assigned at the subtree root (spec 2.5)."""

    WARM = "warm"
    HOLDOUT = "holdout"


class Record(BaseModel):
    """Base of all stored types: frozen, unknown fields refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def model_post_init(self, context: Any, /) -> None:
        """Share what all records of a type have in common: by the million, a set of names each takes most memory."""
        object.__setattr__(self, "__pydantic_fields_set__", _field_names(type(self)))


@cache
def _field_names(record: type[Record]) -> set[str]:
    return set(record.model_fields)


class PromptBody(Record):
    """A prompt exactly as it was sent: order of keys, tools and template arguments included.

    Exactly one of ``messages``, ``prompt``, ``token_ids`` is set.
    """

    messages: list[dict[str, Any]] | None = None
    prompt: str | None = None
    token_ids: list[int] | None = None
    tools: list[dict[str, Any]] | None = None
    template_args: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _one_content(self) -> Self:
        if sum(x is not None for x in (self.messages, self.prompt, self.token_ids)) != 1:
            raise ValueError("exactly one of messages, prompt and token_ids must be given")
        return self


class PlanRow(Record):
    """One chosen (or refused) item on one replica, and why. Grain of the plan: (item_id, replica).

    ``payload_sha256`` points into the plan's ``payloads`` data set; prompts never stand in the plan itself.
    """

    schema_version: int = PLAN_SCHEMA
    run_id: str
    as_of: datetime
    horizon_s: int
    policy: str
    parameters_version: str
    seed: int
    item_id: str
    kind: ItemKind
    wave: int
    order: int
    queue: str
    shard: str
    profile: str
    replica: str | None
    tenant: str | None
    cache_salt: str | None
    model: str
    adapter: str | None
    identity_digest: str
    payload_sha256: str | None
    depends_on: list[str]
    subtree_root: str | None
    prompt_tokens: int
    unique_tokens: int
    heat: float
    expected_uses: float
    expected_gain_ms: float
    expected_cost_ms: float
    assignment_probability: float
    arm: Arm
    is_chosen: bool
    reason: str


class Payload(Record):
    """What must be sent to warm an item. Grain: payload_sha256. Private data: lake only, never logs or XCom.

    A QA pair has ``intent_hash``, the name of its key, and ``answer_text`` where feedback brought a correction that
    replaces the generated answer (spec 1.2).
    """

    payload_sha256: str
    prompt_sha256: str
    token_ids: list[int] | None
    body_json: str | None
    expected_cached_tokens: int
    intent_hash: str | None = None
    answer_text: str | None = None


class ReplicaState(Record):
    """What the survey found of one replica before planning. Grain: (run_id, replica). None: could not be told.

    ``base_ms`` and ``prefill_ms_per_token`` are a straight line through two short salted prefills, so that cost and
    gain speak of this very replica; ``probe_tokens`` is what that measurement cost.
    """

    run_id: str
    replica: str
    profile: str
    model: str
    engine: str
    version: str
    epoch: str | None
    identity_digest: str
    contradictions: list[str]
    block_size: int
    capacity_tokens: int
    max_model_len: int
    has_usage_details: bool | None
    has_runtime_adapters: bool | None
    base_ms: float
    prefill_ms_per_token: float
    probe_tokens: int
    notes: list[str]
    max_adapters: int | None = None


class TwinResult(Record):
    """The cold answer of one item's salted twin. Grain: (run_id, item_id, replica). Spec 6.1.

    ``error`` names why there is no answer; a twin that hit the cache is no cold answer and has one.
    """

    run_id: str
    item_id: str
    replica: str
    stratum: str
    replica_epoch: str | None
    ttft_ms: float | None
    prompt_tokens: int
    cached_tokens: int | None
    answer_tokens: list[str]
    answer_logprobs: list[float]
    answer_top_json: str
    error: str | None


class Receipt(Record):
    """What happened to one item on one replica. Grain: (run_id, item_id, replica). Spec 6.5, architecture."""

    schema_version: int = RECEIPT_SCHEMA
    run_id: str
    as_of: datetime
    item_id: str
    kind: ItemKind
    profile: str
    replica: str | None
    tenant: str | None
    model: str
    adapter: str | None
    identity_digest: str
    wave: int
    order: int
    shard: str
    outcome: Outcome
    reason: str
    replica_epoch: str | None
    started_at: datetime
    finished_at: datetime
    prompt_tokens: int
    computed_tokens: int | None
    ttft_ms: float | None
    arm: Arm
    assignment_probability: float
    expected_gain_ms: float


class Evidence(Record):
    """What validation saw of one item on one replica. Grain: (run_id, item_id, replica). Spec 6.5.

    ``None`` always means *was not looked at* or *the engine did not say*, never 0 or false.
    """

    schema_version: int = RECEIPT_SCHEMA
    run_id: str
    item_id: str
    kind: ItemKind
    profile: str
    replica: str | None
    tenant: str | None
    adapter: str | None
    stratum: str
    replica_epoch: str | None
    is_identity_ok: bool
    residency: Residency
    evidence_kind: EvidenceKind
    cached_tokens: int | None
    expected_cached_tokens: int
    is_sampled: bool
    ttft_cold_ms: float | None
    ttft_warm_ms: float | None
    is_answer_equal: bool | None
    is_control_missed: bool | None
    gain_ms: float | None
    gain_basis: GainBasis
    is_ready: bool
    reason: str


class ReplayRow(Record):
    """One logged request, sent again to one replica in one arm. Grain: (run_id, profile, arm, request_id).

    Hit ratios count whole blocks: ``hit_blocks`` over ``full_blocks``; both None where they could not be told.
    """

    run_id: str
    profile: str
    replica: str
    arm: str
    request_id: str
    prompt_tokens: int | None
    cached_tokens: int | None
    full_blocks: int | None
    hit_blocks: int | None
    ttft_ms: float | None
    error: str | None


class Fingerprint(Record):
    """What was seen of one replica's weights, so that a silent change shows. Grain: (replica, subject).

    ``subject`` is ``model:<name>`` (the answer to a fixed canary, by its log-probabilities) or
    ``adapter:<name>@<weights revision>`` (the digest of the files under ``path``, where this process can read them, and
    the same answer). ``version`` is what was declared.
    """

    replica: str
    subject: str
    version: str | None
    path: str | None
    content_sha256: str | None
    tokens: list[str]
    logprobs: list[float]
    epoch: str | None
    run_id: str


class Mark(Record):
    """This item is warm on this replica at this identity and epoch, with this evidence, until then (spec 0, 1.2).

    ``epoch`` is None only for values that live in the serving store itself: they end together with their mark.
    ``embedder_digest`` names the embedder that an answer or QA pair was chosen with; None where that plays no part.
    """

    schema_version: int = MARK_SCHEMA
    item_id: str
    kind: ItemKind
    tenant: str | None
    replica: str | None
    model: str
    adapter: str | None
    identity_digest: str
    epoch: str | None
    run_id: str
    as_of: datetime
    marked_at: datetime
    expires_at: datetime
    residency: Residency
    evidence_kind: EvidenceKind
    gain_basis: GainBasis
    value_key: str | None = None
    embedder_digest: str | None = None

    @model_validator(mode="after")
    def _replica_has_epoch(self) -> Self:
        if self.replica is not None and self.epoch is None:
            raise ValueError("a mark on a replica needs the epoch that it was proved in")
        return self


class Feedback(Record):
    """One feedback row (spec 1.2): confidence in [0, 1], a correction, and how often it was adopted."""

    schema_version: int = FEEDBACK_SCHEMA
    time: datetime
    tenant: str | None
    prompt_sha256: str | None
    intent_hash: str | None
    confidence: float = Field(ge=0, le=1)
    correction: str | None
    adopted_count: int = Field(ge=0)


def item_id(
    kind: ItemKind, tenant: str | None, cache_salt: str | None, identity_digest: str, content_sha256: str
) -> str:
    """Return the id of an item: 32 hex characters over kind, tenant, salt, identity and content.

    Two weights revisions, tenants or salts never share an id (spec 1.2).
    """
    return digest(
        {
            "kind": str(kind),
            "tenant": tenant,
            "salt": cache_salt,
            "identity": identity_digest,
            "content": content_sha256,
        }
    )[:32]
