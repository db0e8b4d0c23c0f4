"""The plan while it is being made: drafts of rows, payloads, and what every row of one plan has in common.

A draft says what an item is and what it is worth; numbering, shards and the run's fields are added when it is finished.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from warmup_tasks.fleet_file import FleetFile
from warmup_tasks.identity import digest
from warmup_tasks.items import KINDS, Arm, ItemKind, Payload, PlanRow, ReplicaState, item_id
from warmup_tasks.planning.holdout import arm_of, assignment_probability
from warmup_tasks.runs import Run
from warmup_tasks.settings import HardwareProfile

STORE_SHARDS = 2
"""Shards a profile and wave for what lands in the serving store: fixed, so that the number of tasks is."""


@dataclass(slots=True)
class Draft:
    """One candidate on one replica (None: the serving store). ``reason`` is why it is not chosen, or empty."""

    kind: ItemKind
    item_id: str
    profile: str
    replica: str | None
    tenant: str | None
    cache_salt: str | None
    model: str
    adapter: str | None
    identity_digest: str
    policy: str
    prompt_tokens: int = 0
    unique_tokens: int = 0
    heat: float = 0.0
    expected_uses: float = 0.0
    expected_gain_ms: float = 0.0
    expected_cost_ms: float = 0.0
    payload_sha256: str | None = None
    depends_on: list[str] = field(default_factory=list)
    subtree_root: str | None = None
    reason: str = ""


@dataclass(slots=True)
class PlanDraft:
    """Everything that one plan decides, before it is numbered.

    ``not_shown`` counts refused candidates that have no row of their own; ``facts`` are figures for the plan's meta.
    """

    run: Run
    fleet: FleetFile
    profiles: list[HardwareProfile]
    states: list[ReplicaState]
    drafts: list[Draft] = field(default_factory=list)
    payloads: dict[str, Payload] = field(default_factory=dict, repr=False)
    not_shown: Counter[tuple[ItemKind, str]] = field(default_factory=Counter)
    facts: dict[str, Any] = field(default_factory=dict)
    _identities: dict[tuple[str, str | None], str] = field(default_factory=dict)

    def arm(self, subtree_root: str | None) -> Arm:
        """Return the arm of a subtree in this run."""
        return arm_of(self.run.request.seed, subtree_root, self.run.policy.holdout_share)

    def identity(self, model: str, adapter: str | None = None) -> str:
        """Return the declared serving identity's digest: the namespace that readers look in."""
        if (model, adapter) not in self._identities:
            self._identities[model, adapter] = self.fleet.identity(model, adapter).digest()
        return self._identities[model, adapter]

    def replica_share(self, model: str) -> float:
        """Return the part of a model's traffic that one replica sees when a router deals requests in turn."""
        return 1.0 / max(1, sum(replica.model == model for replica in self.fleet.replicas))

    def state_of(self, model: str, profile: str | None = None) -> ReplicaState | None:
        """Return the first surveyed replica of a model (on a profile), whose figures speak for stored items."""
        fitting = (s for s in self.states if s.model == model and profile in (None, s.profile))
        return next(fitting, None)

    def add_payload(self, payload: Payload) -> str:
        """Keep a payload once and return its digest."""
        self.payloads.setdefault(payload.payload_sha256, payload)
        return payload.payload_sha256

    def shards(self) -> dict[str, dict[str, list[str]]]:
        """Return profile → wave (as text) → shard ids; they follow from the fleet alone, never from the items."""
        return {profile.name: {str(w): self._shards(profile.name, w) for w in _WAVES} for profile in self.profiles}

    def rows(self) -> list[PlanRow]:
        """Return the finished rows, sorted by profile, wave, shard and order; in a shard the hottest stands last."""
        queues = {profile.name: profile.queue for profile in self.profiles}
        version = self.run.parameters.version()
        by_shard: dict[tuple[str, int, str], list[Draft]] = {}
        for draft in self.drafts:
            by_shard.setdefault((draft.profile, KINDS[draft.kind].wave, self._shard(draft)), []).append(draft)
        rows = []
        for (profile, wave, shard), drafts in sorted(by_shard.items()):
            for order, draft in enumerate(sorted(drafts, key=warming_order)):
                rows.append(self._row(draft, wave, order, shard, queues.get(profile, ""), version))
        return rows

    def _row(self, draft: Draft, wave: int, order: int, shard: str, queue: str, version: str) -> PlanRow:
        values = {name: getattr(draft, name) for name in Draft.__slots__}
        return PlanRow(
            run_id=self.run.run_id,
            as_of=self.run.as_of,
            horizon_s=self.run.policy.horizon_s,
            parameters_version=version,
            seed=self.run.request.seed,
            wave=wave,
            order=order,
            queue=queue,
            shard=shard,
            assignment_probability=assignment_probability(draft.subtree_root, self.run.policy.holdout_share),
            arm=self.arm(draft.subtree_root),
            is_chosen=not draft.reason,
            **values,
        )

    def _shard(self, draft: Draft) -> str:
        if not draft.profile:
            return ""
        where = draft.replica or f"{int(self._prompt(draft)[:8], 16) % STORE_SHARDS:02d}"
        return f"{draft.profile}.w{KINDS[draft.kind].wave}.{where}"

    def _prompt(self, draft: Draft) -> str:
        """Return what a stored item is dealt by: what is made of one prompt lies in shards of one number."""
        payload = self.payloads.get(draft.payload_sha256 or "")
        return payload.prompt_sha256 if payload else draft.item_id

    def _shards(self, profile: str, wave: int) -> list[str]:
        replicas = sorted(state.replica for state in self.states if state.profile == profile)
        stores = [f"{number:02d}" for number in range(STORE_SHARDS if replicas else 0)]
        is_per_replica = any(rules.wave == wave and rules.is_per_replica for rules in KINDS.values())
        return [f"{profile}.w{wave}.{where}" for where in (replicas if is_per_replica else stores)]


_WAVES = sorted({rules.wave for rules in KINDS.values()})


def warming_order(draft: Draft) -> tuple[int, float, float, str]:
    """Return the sort key of a shard: kinds in their order, and in each the hottest last, so that it stays longest.

    What counts is what will be asked for, not what was: where the reuse model speaks, the two part.
    """
    return (KINDS[draft.kind].order_in_wave, draft.expected_uses, draft.heat, draft.item_id)


def body_payload(
    prompt_sha256: str, body_json: str, intent_hash: str | None = None, answer_text: str | None = None
) -> Payload:
    """Return the payload of an item that is made from a prompt body."""
    content = {"body": body_json, "prompt": prompt_sha256, "intent": intent_hash, "answer": answer_text}
    return Payload(
        payload_sha256=digest(content),
        prompt_sha256=prompt_sha256,
        token_ids=None,
        body_json=body_json,
        expected_cached_tokens=0,
        intent_hash=intent_hash,
        answer_text=answer_text,
    )


def refused_id(kind: ItemKind, row: dict[str, Any], identity_digest: str) -> str:
    """Return the id of a candidate that has no item: over what was asked, adapter included."""
    content = digest({"prompt": row.get("prompt_sha256"), "adapter": row["adapter"]})
    return item_id(kind, row.get("tenant"), row.get("cache_salt"), identity_digest, content)
