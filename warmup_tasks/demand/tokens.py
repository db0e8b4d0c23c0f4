"""Prompts as token ids, each asked of the engine once and kept in the lake for later nights.

Tokens depend on the tokenizer and the chat template, so they are kept per serving identity: after a change of identity
nothing is reused. The engine is reached through a callable that the caller brings; there is no network here.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pydantic import ValidationError

from warmup_tasks.errors import ContractError, RejectItemError
from warmup_tasks.identity import digest
from warmup_tasks.items import PromptBody, ReplicaState
from warmup_tasks.lake.schemas import TIMESTAMP
from warmup_tasks.lake.store import Lake

TokenIds = npt.NDArray[np.int32]
Tokenize = Callable[[list[tuple[PromptBody, str]]], list["list[int] | RejectItemError"]]
Progress = Callable[[int, int], None]

BATCH_PROMPTS = 256

TOKENS = pa.schema(
    [
        ("body_sha256", pa.string()),
        ("token_ids", pa.list_(pa.int32())),
        ("reason", pa.string()),
        ("last_seen", TIMESTAMP),
    ]
)
"""One row a prompt body, byte for byte. ``reason`` instead of tokens where the engine refused it. Private data."""


@dataclass(slots=True)
class TokenTable:
    """One model's prompts as tokens: tokens, or the reason of the refusal, by body digest."""

    ref: str
    token_ids: dict[str, TokenIds] = field(default_factory=dict, repr=False)
    refused: dict[str, str] = field(default_factory=dict)
    asked: int = 0
    reused: int = 0


def identity_of(model: str, replicas: list[ReplicaState]) -> str:
    """Return what the model's tokens depend on: its replicas' identity digest, or one over all that differ."""
    identities = sorted({state.identity_digest for state in replicas if state.model == model})
    return identities[0] if len(identities) == 1 else digest(identities)


def tokens_of(
    lake: Lake,
    model: str,
    identity_digest: str,
    bodies: Mapping[str, tuple[str, datetime]],
    tokenize: Tokenize,
    *,
    keep_since: datetime,
    progress: Progress | None = None,
) -> TokenTable:
    """Return the tokens of one model's prompts, asking the engine only for those that no earlier night asked for.

    Args:
        lake: where ``tokens/<model>.<identity>`` lies.
        model: the base model's name.
        identity_digest: of the base model (:func:`identity_of`).
        bodies: body digest → (``PromptBody`` as JSON, when it was last seen).
        tokenize: one answer a prompt, in order; a refusal stands in its place.
        keep_since: tokens last seen before it are dropped from the lake.
        progress: called with (done, total) after each batch.

    Raises:
        ContractError: ``tokenize`` gave another number of answers than prompts.
    """
    partition = f"{re.sub(r'[^A-Za-z0-9_.-]', '+', model).lstrip('_.+-') or 'model'}.{identity_digest[:16]}"
    known = {row["body_sha256"]: row for row in _earlier(lake, partition)}
    missing = sorted(sha for sha in bodies if sha not in known)
    result = TokenTable(ref="", asked=len(missing), reused=len(bodies) - len(missing))
    for start in range(0, len(missing), BATCH_PROMPTS):
        batch = missing[start : start + BATCH_PROMPTS]
        for sha, (ids, reason) in zip(batch, _ask(model, [bodies[sha][0] for sha in batch], tokenize), strict=True):
            known[sha] = {"body_sha256": sha, "token_ids": ids, "reason": reason, "last_seen": None}
        if progress is not None:
            progress(min(start + BATCH_PROMPTS, len(missing)), len(missing))
    kept = []
    for sha in sorted(known):
        row = known[sha]
        if sha in bodies:
            row["last_seen"] = max(filter(None, (row["last_seen"], bodies[sha][1])))
            if row["reason"] is None:
                result.token_ids[sha] = np.asarray(row["token_ids"], dtype=np.int32)
            else:
                result.refused[sha] = row["reason"]
        if row["last_seen"] >= keep_since:
            kept.append(row)
    result.ref = lake.publish("tokens", partition, {"tokens": _table(kept)}, {"model": model})
    return result


def _ask(model: str, bodies: list[str], tokenize: Tokenize) -> list[tuple[TokenIds | None, str | None]]:
    requests: list[tuple[PromptBody, str]] = []
    try:
        requests = [(PromptBody.model_validate_json(body), model) for body in bodies]
    except ValidationError:
        raise ContractError("requests: a body_json is no PromptBody; extract the log again") from None
    answers = tokenize(requests)
    if len(answers) != len(requests):
        raise ContractError(f"tokenize answered {len(answers)} of {len(requests)} prompts")
    return [
        (None, answer.reason) if isinstance(answer, RejectItemError) else (np.asarray(answer, dtype=np.int32), None)
        for answer in answers
    ]


def _earlier(lake: Lake, partition: str) -> list[dict[str, Any]]:
    ref = lake.latest("tokens", partition)
    if ref is None:
        return []
    table = lake.read(ref, "tokens").combine_chunks()
    rows: list[dict[str, Any]] = table.select(["body_sha256", "reason", "last_seen"]).to_pylist()
    for row, scalar in zip(rows, table["token_ids"], strict=True):
        ids = scalar.values
        row["token_ids"] = None if ids is None else ids.to_numpy(zero_copy_only=False)
    return rows


def _table(rows: list[dict[str, Any]]) -> pa.Table:
    columns = [[row[name] for row in rows] for name in TOKENS.names]
    return pa.table(
        [pa.array(values, type=kind) for values, kind in zip(columns, TOKENS.types, strict=True)], schema=TOKENS
    )
