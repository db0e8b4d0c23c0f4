"""What is kept outside the KV cache: embeddings, adapters, default responses, QA pairs (spec 1.2).

Stored items are dealt to profiles by their prompt, so that an answer and the embedding it depends on run in one branch.
Adapters go to every replica of their base model that has a slot left.
"""

from collections.abc import Iterable
from typing import Any

from warmup_tasks.errors import ConfigurationError
from warmup_tasks.identity import digest
from warmup_tasks.items import Arm, ItemKind, Reason, item_id
from warmup_tasks.planning.cost import ADAPTER_LOAD_MS, EMBEDDING_MS, request_ms
from warmup_tasks.planning.drafts import Draft, PlanDraft, body_payload, refused_id

Row = dict[str, Any]


class StorePlanner:
    """Drafts what one plan stores or loads beside KV prefixes.

    Args:
        plan: receives drafts and payloads.
        prompts: rows of ``demand`` table ``prompts``.
        intents: rows of ``demand`` table ``intents``.
    """

    def __init__(self, plan: PlanDraft, prompts: list[Row], intents: list[Row]) -> None:
        self._plan, self._prompts, self._intents = plan, prompts, intents
        self._embeddings: dict[tuple[str | None, str], Draft] = {}
        self.adapter_ids: dict[tuple[str, str], str] = {}

    def plan_embeddings(self) -> None:
        """Draft one embedding a tenant and prompt, of repeated prompts and of canonical questions."""
        identity = self._plan.fleet.embedder.digest()
        for row in (*self._prompts, *self._intents):
            key, uses = (row["tenant"], row["prompt_sha256"]), row["expected_uses"]
            profile = self._profile(row)
            if profile is None:
                continue
            draft = self._embeddings.get(key)
            if draft is None:
                draft = self._draft(ItemKind.EMBEDDING, row, identity, row["prompt_sha256"], profile)
                draft.adapter, draft.cache_salt, draft.expected_cost_ms = None, None, EMBEDDING_MS
                draft.item_id = item_id(ItemKind.EMBEDDING, row["tenant"], None, identity, row["prompt_sha256"])
                draft.payload_sha256 = self._plan.add_payload(body_payload(row["prompt_sha256"], row["body_json"]))
                draft.expected_uses = draft.heat = 0.0
                self._embeddings[key] = draft
            if "intent_hash" not in row:
                draft.expected_uses += uses
                draft.heat += row["heat_slow"]
            else:
                draft.expected_uses, draft.heat = max(draft.expected_uses, uses), max(draft.heat, row["heat_slow"])
            draft.expected_gain_ms = draft.expected_uses * EMBEDDING_MS
        self._plan.drafts += self._embeddings.values()

    def plan_adapters(self, adapters: Iterable[Row]) -> None:
        """Draft each listed adapter on each replica of its base model, hottest first while slots last.

        Args:
            adapters: rows of ``demand`` table ``adapters``, most expected uses first.
        """
        loaded: dict[str, int] = {}
        for row in adapters:
            if not row["is_listed"]:
                identity = self._plan.identity(row["model"])
                draft = self._adapter_draft(row, identity, refused_id(ItemKind.ADAPTER, row, identity), "", None)
                draft.reason = Reason.ADAPTER_UNKNOWN
                self._plan.drafts.append(draft)
                continue
            for state in (state for state in self._plan.states if state.model == row["model"]):
                identity = self._plan.identity(row["model"], row["adapter"])
                name = item_id(ItemKind.ADAPTER, None, None, identity, digest({"adapter": row["adapter"]}))
                draft = self._adapter_draft(row, identity, name, state.profile, state.replica)
                self._plan.drafts.append(draft)
                loaded[state.replica] = loaded.get(state.replica, 0) + 1
                if state.max_adapters is not None and loaded[state.replica] > state.max_adapters:
                    draft.reason = Reason.OVER_CAPACITY
                else:
                    draft.depends_on = self._source_clusters(row, state.profile)
                    self.adapter_ids[state.replica, row["adapter"]] = name

    def plan_responses(self) -> None:
        """Draft the default responses of prompts that were answered often enough, each in its prompt's arm."""
        for row in self._prompts:
            profile = self._profile(row)
            if row["ok_uses"] < self._plan.run.policy.min_uses or profile is None:
                continue
            identity = self._plan.identity(row["model"], row["adapter"])
            draft = self._draft(ItemKind.RESPONSE, row, identity, row["prompt_sha256"], profile)
            draft.payload_sha256 = self._plan.add_payload(body_payload(row["prompt_sha256"], row["body_json"]))
            self._finish_answer(draft, row)

    def plan_questions(self) -> None:
        """Draft one QA pair an intent; a correction that feedback brought stands in its payload as the answer."""
        for row in self._intents:
            profile = self._profile(row)
            if profile is None:
                continue
            identity = self._plan.identity(row["model"], row["adapter"])
            draft = self._draft(ItemKind.QA_PAIR, row, identity, row["intent_hash"], profile)
            payload = body_payload(row["prompt_sha256"], row["body_json"], row["intent_hash"], row["correction"])
            draft.payload_sha256 = self._plan.add_payload(payload)
            self._finish_answer(draft, row, is_generated=row["correction"] is None)

    def limit_answers(self) -> None:
        """Refuse the generated answers beyond the run's ``max_answers``, those of the smallest gain."""
        limit = self._plan.run.request.max_answers
        kinds = (ItemKind.RESPONSE, ItemKind.QA_PAIR)
        generated = [d for d in self._plan.drafts if d.kind in kinds and not d.reason and d.expected_cost_ms]
        generated.sort(key=lambda draft: (-draft.expected_gain_ms, draft.item_id))
        for draft in generated[limit:] if limit is not None else ():
            draft.reason = Reason.ANSWER_LIMIT

    def _finish_answer(self, draft: Draft, row: Row, *, is_generated: bool = True) -> None:
        """Add worth, cost and dependencies; refuse what is held out or lacks its adapter."""
        state = self._plan.state_of(draft.model, draft.profile)
        if state is None:
            raise ConfigurationError(f"no replica of {draft.model} on profile {draft.profile}")
        saved = row["latency_ms"] or request_ms(state, draft.prompt_tokens)
        draft.expected_gain_ms = draft.expected_uses * saved
        if is_generated:
            draft.expected_cost_ms, draft.unique_tokens = saved, draft.prompt_tokens
        embedding = self._embeddings[row["tenant"], row["prompt_sha256"]]
        if embedding.profile == draft.profile:
            draft.depends_on.append(embedding.item_id)
        if draft.adapter is not None and is_generated:
            loaded = {
                self.adapter_ids[s.replica, draft.adapter]
                for s in self._plan.states
                if s.profile == draft.profile and (s.replica, draft.adapter) in self.adapter_ids
            }
            draft.depends_on += sorted(loaded)
            draft.reason = "" if loaded else Reason.DEPENDENCY_FAILED
        if is_generated and draft.prompt_tokens + self._plan.run.policy.response_tokens > state.max_model_len:
            draft.reason = Reason.TOO_LONG
        elif self._plan.arm(draft.subtree_root) is Arm.HOLDOUT:
            draft.reason = Reason.HOLDOUT
        self._plan.drafts.append(draft)

    def _source_clusters(self, row: Row, profile: str) -> list[str]:
        sources = {
            self._embeddings[prompt["tenant"], prompt["prompt_sha256"]].item_id
            for prompt in self._prompts
            if prompt["adapter"] == row["adapter"]
            and prompt["model"] == row["model"]
            and (prompt["tenant"], prompt["prompt_sha256"]) in self._embeddings
            and self._embeddings[prompt["tenant"], prompt["prompt_sha256"]].profile == profile
        }
        return sorted(sources)

    def _adapter_draft(self, row: Row, identity: str, name: str, profile: str, replica: str | None) -> Draft:
        uses = row["expected_uses"] * (self._plan.replica_share(row["model"]) if replica else 1.0)
        return Draft(
            kind=ItemKind.ADAPTER,
            item_id=name,
            profile=profile,
            replica=replica,
            tenant=None,
            cache_salt=None,
            model=row["model"],
            adapter=row["adapter"],
            identity_digest=identity,
            policy="static",
            heat=row["heat_slow"],
            expected_uses=uses,
            expected_gain_ms=uses * ADAPTER_LOAD_MS,
            expected_cost_ms=ADAPTER_LOAD_MS,
        )

    def _draft(self, kind: ItemKind, row: Row, identity: str, content: str, profile: str) -> Draft:
        salt = self._plan.fleet.live_salt(row["tenant"], row["cache_salt"], identity) if row["cache_salt"] else None
        return Draft(
            kind=kind,
            item_id=item_id(kind, row["tenant"], None, identity, content),
            profile=profile,
            replica=None,
            tenant=row["tenant"],
            cache_salt=salt,
            model=row["model"],
            adapter=row["adapter"],
            identity_digest=identity,
            policy=row["policy"],
            prompt_tokens=row["prompt_tokens"],
            heat=row["heat_slow"],
            expected_uses=row["expected_uses"],
            subtree_root=row["subtree_root"] if kind is not ItemKind.EMBEDDING else None,
        )

    def _profile(self, row: Row) -> str | None:
        """Return the profile that a prompt's items are dealt to: one that has a replica of the model."""
        profiles = sorted({state.profile for state in self._plan.states if state.model == row["model"]})
        if not profiles:
            return None
        return profiles[int(digest([row["tenant"], row["prompt_sha256"]])[:8], 16) % len(profiles)]
