"""What a stored answer or vector could serve: repeated exact prompts, frequent questions, adapters.

Here distinct prompts are grouped into the rows of ``tables.PROMPTS``, ``INTENTS`` and ``ADAPTERS``. Only prompts that
will be asked again in this very form count: one with a changing clock or yesterday's date has no answer to keep.
"""

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from warmup_tasks.demand import intents as qa
from warmup_tasks.demand.asked import ANSWERABLE, GENERATING, Asked
from warmup_tasks.demand.embedder import HashingEmbedder
from warmup_tasks.demand.prompts import question
from warmup_tasks.fleet_file import FleetFile
from warmup_tasks.identity import digest
from warmup_tasks.items import PromptBody

Row = dict[str, Any]


def repeated_prompts(prompts: Iterable[Asked], *, min_uses: int, top_k: int) -> list[Row]:
    """Return the rows of ``tables.PROMPTS``: the ``top_k`` prompts with most expected uses, sorted so.

    Args:
        prompts: the distinct prompts.
        min_uses: rarer prompts are left out.
        top_k: upper limit of rows.
    """
    usable = [asked for asked in prompts if _has_answer(asked)]
    rows = [_prompt_row(list(group)) for _, group in groupby(sorted(usable, key=_grain), key=_grain)]
    frequent = [row for row in rows if row["uses"] >= min_uses]
    return sorted(frequent, key=lambda row: (-row["expected_uses"], row["prompt_sha256"], _scope_text(row)))[:top_k]


def frequent_questions(
    prompts: Iterable[Asked],
    corrections: Sequence[Row],
    embedder: HashingEmbedder,
    *,
    similarity_threshold: float,
    min_uses: int,
    top_k: int,
) -> list[Row]:
    """Return the rows of ``tables.INTENTS``: the ``top_k`` intents with most expected uses, sorted so.

    Args:
        prompts: the distinct prompts.
        corrections: rows of ``sql/demand/corrections.sql``; one that fits becomes the answer.
        embedder: compares wordings.
        similarity_threshold: cosine from which on two wordings may be one intent.
        min_uses: rarer intents are left out.
        top_k: upper limit of rows.
    """
    usable = [
        asked
        for asked in sorted(prompts, key=_grain)
        if _has_answer(asked) and asked.request_type == "chat" and asked.ok_uses
    ]
    asked_questions = []
    for index, asked in enumerate(usable):
        found = question(PromptBody.model_validate_json(asked.body_json or ""))
        if found is not None:
            place = {"tenant": asked.tenant, "model": asked.model, "adapter": asked.adapter}
            scope = digest({**place, "scope": found.scope_sha256})
            asked_questions.append(qa.QuestionUse(index, scope, found.text, asked.ok_uses))
    rows = [
        _intent_row(intent, [usable[index] for index in intent.members], corrections)
        for intent in qa.intents(asked_questions, embedder, similarity_threshold, min_uses)
    ]
    return sorted(rows, key=lambda row: (-row["expected_uses"], row["intent_hash"]))[:top_k]


def used_adapters(prompts: Iterable[Asked], fleet: FleetFile) -> list[Row]:
    """Return the rows of ``tables.ADAPTERS``, most expected uses first."""
    rows: dict[tuple[str, str], Row] = {}
    for asked in prompts:
        if asked.adapter is None:
            continue
        row = rows.setdefault(
            (asked.model, asked.adapter),
            {
                "model": asked.model,
                "adapter": asked.adapter,
                "uses": 0,
                "heat_slow": 0.0,
                "expected_uses": 0.0,
                "is_listed": fleet.adapter(asked.adapter) is not None,
            },
        )
        for name in ("uses", "heat_slow", "expected_uses"):
            row[name] += getattr(asked, name)
    return sorted(rows.values(), key=lambda row: (-row["expected_uses"], row["model"], row["adapter"]))


def correction_of(
    tenant: str | None, intent_hash: str, prompts: Sequence[str], corrections: Sequence[Row]
) -> str | None:
    """Return the newest correction of an intent, by its hash or by one of its prompts' digests, or None."""
    fitting = [
        row
        for row in corrections
        if row["tenant"] == tenant and (row["intent_hash"] == intent_hash or row["prompt_sha256"] in prompts)
    ]
    newest = max(fitting, key=lambda row: (row["time"], row["correction"]), default=None)
    return newest["correction"] if newest else None


def _has_answer(asked: Asked) -> bool:
    return asked.is_lasting and asked.reason in ANSWERABLE and bool(asked.prompt_sha256 and asked.body_json)


def _grain(asked: Asked) -> tuple[str, ...]:
    return (asked.tenant or "", asked.model, asked.adapter or "", asked.prompt_sha256 or "")


def _scope_text(row: Row) -> tuple[str, ...]:
    return (row["tenant"] or "", row["model"], row["adapter"] or "")


def _prompt_row(group: list[Asked]) -> Row:
    newest = _newest(group)
    return {
        **_place(newest),
        "request_type": newest.request_type,
        "ok_uses": sum(asked.ok_uses for asked in group if asked.request_type in GENERATING),
        "last_seen": newest.last_seen,
        **_sums(group),
    }


def _intent_row(intent: qa.Intent, members: list[Asked], corrections: Sequence[Row]) -> Row:
    canonical = members[0]
    digests = sorted({asked.prompt_sha256 or "" for asked in members})
    return {
        **_place(canonical),
        "intent_hash": intent.intent_hash,
        "member_prompts": digests,
        "correction": correction_of(canonical.tenant, intent.intent_hash, digests, corrections),
        **_sums(members),
    }


def _place(asked: Asked) -> Row:
    names = ("tenant", "model", "adapter", "cache_salt", "prompt_sha256", "body_json", "prompt_tokens", "policy")
    return {name: getattr(asked, name) for name in (*names, "subtree_root")}


def _sums(group: list[Asked]) -> Row:
    measured = [(asked.latency_ms, asked.ok_uses) for asked in group if asked.latency_ms is not None and asked.ok_uses]
    weight = sum(uses for _, uses in measured)
    return {
        "uses": sum(asked.uses for asked in group),
        "heat_slow": sum(asked.heat_slow for asked in group),
        "expected_uses": sum(asked.expected_uses for asked in group),
        "latency_ms": sum(latency * uses for latency, uses in measured) / weight if weight else None,
    }


def _newest(group: list[Asked]) -> Asked:
    return max(group, key=lambda asked: (asked.last_seen, asked.uses, asked.body_sha256 or ""))
