"""One distinct prompt as it was asked, and whether it may be considered at all.

Here rows of ``sql/demand/sequences.sql`` become :class:`Asked`, meet their tokens, and are refused by rules that need
no forecast: part of a prompt, unknown adapter, wrong salt, no room, volatile head. Nothing is chosen.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import numpy as np

from warmup_tasks.demand.prefix_tree import TokenSequence, tree_seed, warmable_steps
from warmup_tasks.demand.prompts import head
from warmup_tasks.demand.tokens import TokenIds
from warmup_tasks.demand.volatile import HEAD_CHARACTERS, OPENING_CHARACTERS, HeadSighting, stabilities
from warmup_tasks.errors import ConfigurationError
from warmup_tasks.fleet_file import FleetFile
from warmup_tasks.identity import SaltMode, check_salt
from warmup_tasks.items import PromptBody, Reason
from warmup_tasks.runs import Run

_NO_TOKENS = np.zeros(0, dtype=np.int32)
GENERATING = ("chat", "completion")
ANSWERABLE = (None, Reason.NOT_WARMABLE)
"""Reasons that do not stand in the way of a stored answer: a short prompt has one, too."""


@dataclass(slots=True)
class Asked:
    """One distinct prompt of one tenant at one model, adapter and salt: uses, heat, forecasts, tokens.

    ``reason`` is why it is refused, or None; ``stable_tokens`` is how much of it will be asked for again,
    ``is_lasting`` whether all of it will; ``subtree_root`` and ``shared_prefix`` name its place in the prefix tree.
    """

    tenant: str | None
    model: str
    adapter: str | None
    cache_salt: str | None
    request_type: str
    prompt_sha256: str | None
    body_sha256: str | None
    is_truncated: bool
    body_json: str | None = field(repr=False)
    uses: int
    ok_uses: int
    first_seen: datetime
    last_seen: datetime
    heat_fast: float
    heat_slow: float
    static_uses: float
    dynamic_uses: float
    back_static_uses: float
    back_dynamic_uses: float
    back_actual_uses: float
    latency_ms: float | None
    input_tokens: int | None
    sessions: list[str] | None
    token_ids: TokenIds = field(default_factory=lambda: _NO_TOKENS, repr=False)
    stable_tokens: int = 0
    reason: str | None = None
    is_lasting: bool = True
    policy: str = "static"
    subtree_root: str | None = None
    shared_prefix: str | None = None

    @property
    def expected_uses(self) -> float:
        """Return the uses that the class's policy expects in the horizon."""
        return self.dynamic_uses if self.policy == "dynamic" else self.static_uses

    @property
    def prompt_tokens(self) -> int:
        """Return the prompt's length in tokens, by the engine or else by the log; 0 where neither tells."""
        return len(self.token_ids) or self.input_tokens or 0

    @property
    def traffic_class(self) -> tuple[str, str, str]:
        """Return model, adapter (or empty) and request type (spec 0)."""
        return (self.model, self.adapter or "", self.request_type)

    def sequence(self, step_tokens: int) -> TokenSequence:
        """Return what the prefix tree needs of this prompt."""
        seed = tree_seed(self.model, self.adapter, self.cache_salt)
        return TokenSequence(self.token_ids, self.stable_tokens, seed, step_tokens)


def read_asked(rows: Sequence[dict[str, Any]]) -> list[Asked]:
    """Return the rows of ``sql/demand/sequences.sql`` as records."""
    return [Asked(**row) for row in rows]


def refusal(asked: Asked, fleet: FleetFile) -> Reason | None:
    """Return why a prompt is refused whatever its tokens are, or None (spec 1.4: only salts that traffic sends)."""
    if asked.is_truncated:
        return Reason.TRUNCATED_PROMPT
    if asked.adapter is not None and fleet.adapter(asked.adapter) is None:
        return Reason.ADAPTER_UNKNOWN
    mode = fleet.tenant(asked.tenant).salt_mode
    if mode is SaltMode.NONE:
        return Reason.SALT_UNEXPECTED if asked.cache_salt is not None else None
    try:
        if mode is SaltMode.DERIVED:
            identity = fleet.identity(asked.model, asked.adapter).digest()
            live = fleet.live_salt(asked.tenant, asked.cache_salt, identity)
            return None if live == asked.cache_salt else Reason.SALT_NOT_IN_TRAFFIC
        if asked.cache_salt is not None:
            check_salt(asked.cache_salt)
    except ConfigurationError:
        return Reason.SALT_NOT_IN_TRAFFIC if mode is SaltMode.DERIVED else Reason.ENGINE_REFUSED
    return None


def judge(
    prompts: Sequence[Asked], fleet: FleetFile, run: Run, max_model_len: dict[str, int], step_tokens: dict[str, int]
) -> None:
    """Set ``stable_tokens`` and ``reason`` of each prompt that has content.

    Args:
        prompts: with tokens, or with the engine's reason for having none.
        fleet: tenants' salts, adapters.
        run: as_of, horizon, limits.
        max_model_len: tokens a model takes, answer included.
        step_tokens: smallest prefix step of a model.
    """
    for asked in prompts:
        asked.reason = refusal(asked, fleet) or asked.reason
        if asked.reason is None and len(asked.token_ids) + run.policy.answer_tokens > max_model_len[asked.model]:
            asked.reason = Reason.TOO_LONG
        asked.stable_tokens = len(asked.token_ids)
        if asked.reason is None and not warmable_steps(asked.sequence(step_tokens[asked.model])):
            asked.reason = Reason.NOT_WARMABLE
    open_ones = [asked for asked in prompts if asked.reason in ANSWERABLE]
    sightings = [_sighting(asked) for asked in open_ones]
    found = stabilities(sightings, run.as_of, run.policy.horizon_s, run.policy.min_uses)
    for asked, stability in zip(open_ones, found, strict=True):
        asked.stable_tokens, asked.is_lasting = stability.stable_tokens, stability.reason is None
        asked.reason = asked.reason or stability.reason


def _sighting(asked: Asked) -> HeadSighting:
    body = PromptBody.model_validate_json(asked.body_json or "")
    group = tree_seed(asked.model, asked.adapter, asked.cache_salt).hex()
    text = head(body, HEAD_CHARACTERS, OPENING_CHARACTERS)
    return HeadSighting(group, text, asked.token_ids, asked.uses, asked.first_seen, asked.last_seen)
