"""The tables of a ``demand/<run_id>`` partition: columns and grain. Private data: they hold prompts and token ids."""

import pyarrow as pa

from warmup_tasks.demand.reuse.features import NAMES
from warmup_tasks.lake.schemas import TIMESTAMP

DEMAND_SCHEMA = 1

NODES = pa.schema(
    [
        ("node", pa.int64()),
        ("parent", pa.int64()),  # -1 at the top
        ("path", pa.int64()),  # of ``paths``; its tokens begin with this node's
        ("tenant", pa.string()),  # null where several tenants share the node
        ("model", pa.string()),
        ("adapter", pa.string()),
        ("cache_salt", pa.string()),
        ("subtree_root", pa.string()),  # null for an ancestor that several subtrees share
        ("name", pa.string()),  # hex of the chained block hash
        ("level", pa.int64()),
        ("start_tokens", pa.int64()),
        ("end_tokens", pa.int64()),
        ("step_tokens", pa.int64()),
        ("uses", pa.int64()),
        ("sessions", pa.int64()),
        ("last_seen", TIMESTAMP),
        ("heat_fast", pa.float64()),
        ("heat_slow", pa.float64()),
        ("expected_uses", pa.float64()),
        ("policy", pa.string()),
    ]
)
"""One row a node of the compressed prefix tree that a plan may choose; parents stand before children."""

REUSE = pa.schema(
    [("node", pa.int64()), ("chance", pa.float64()), *((name, pa.float64()) for name in NAMES)]  # of ``nodes``
)
"""One row a node whose reuse was predicted: the chance of being asked for, and what it was predicted from."""

PATHS = pa.schema([("path", pa.int64()), ("token_ids", pa.list_(pa.int32()))])
"""One row a deepest node: the tokens from the top to it, and one more, so that its last block can be hit."""

PROMPTS = pa.schema(
    [
        ("tenant", pa.string()),
        ("model", pa.string()),
        ("adapter", pa.string()),
        ("cache_salt", pa.string()),
        ("request_type", pa.string()),
        ("prompt_sha256", pa.string()),
        ("body_json", pa.string()),
        ("prompt_tokens", pa.int64()),
        ("subtree_root", pa.string()),
        ("uses", pa.int64()),
        ("ok_uses", pa.int64()),  # answered with status 200
        ("last_seen", TIMESTAMP),
        ("heat_slow", pa.float64()),
        ("expected_uses", pa.float64()),
        ("latency_ms", pa.float64()),
        ("policy", pa.string()),
    ]
)
"""One row a prompt asked at least ``min_uses`` times. Grain: tenant × model × adapter × prompt_sha256."""

INTENTS = pa.schema(
    [
        ("tenant", pa.string()),
        ("model", pa.string()),
        ("adapter", pa.string()),
        ("cache_salt", pa.string()),
        ("intent_hash", pa.string()),
        ("prompt_sha256", pa.string()),  # of the canonical question
        ("body_json", pa.string()),
        ("prompt_tokens", pa.int64()),
        ("subtree_root", pa.string()),
        ("member_prompts", pa.list_(pa.string())),
        ("uses", pa.int64()),
        ("heat_slow", pa.float64()),
        ("expected_uses", pa.float64()),
        ("latency_ms", pa.float64()),
        ("correction", pa.string()),  # the answer that feedback brought, or null
        ("policy", pa.string()),
    ]
)
"""One row a frequent question with one answer. Grain: intent_hash, whose scope covers tenant, model and adapter."""

ADAPTERS = pa.schema(
    [
        ("model", pa.string()),
        ("adapter", pa.string()),
        ("uses", pa.int64()),
        ("heat_slow", pa.float64()),
        ("expected_uses", pa.float64()),
        ("is_listed", pa.bool_()),  # in the fleet file
    ]
)
"""One row an adapter that was asked for. Grain: model × adapter."""

REFUSED = pa.schema(
    [
        ("tenant", pa.string()),
        ("model", pa.string()),
        ("adapter", pa.string()),
        ("cache_salt", pa.string()),
        ("prompt_sha256", pa.string()),
        ("prompt_tokens", pa.int64()),
        ("stable_tokens", pa.int64()),
        ("uses", pa.int64()),
        ("heat_slow", pa.float64()),
        ("expected_uses", pa.float64()),
        ("reason", pa.string()),
    ]
)
"""The most used prompts whose KV prefix is refused, ``top_k`` a reason; all are counted in the meta."""
