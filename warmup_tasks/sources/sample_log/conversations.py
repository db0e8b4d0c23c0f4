"""What is asked: single questions, paraphrases, sessions that grow, and the odd prompt that cannot be warmed.

Here requests come to be, with what a gateway would have measured; how a line of a log looks is in ``lines.py``.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from random import Random
from typing import Any

from warmup_tasks.sources.sample_log import words
from warmup_tasks.sources.sample_log.tenants import Head, Manner, Tenant

_CHARACTERS_PER_TOKEN = 4
_BLOCK_TOKENS = 16
_LONGEST_SESSION_CHARACTERS = 10_500
_TOO_LONG_CHARACTERS = 60_000
_SESSION_SHARE = {Manner.PROGRAM: 0.006, Manner.CHAT: 0.5}
_REPHRASED_SHARE = 0.2
_MOST_TURNS = 6
_DETAILS = (0, 200, 400, 800)
_SHORT_PROMPTS = ("Status of order {n}?", "Opening hours today?", "Price of item {n}?", "Ping {n}")


@dataclass(frozen=True, slots=True)
class Asked:
    """One request as the gateway saw it."""

    request_id: str
    moment: datetime
    tenant: Tenant
    body: dict[str, Any] = field(repr=False)
    session_id: str | None
    answer: str | None = field(repr=False)
    status: int
    prompt_tokens: int
    cached_tokens: int | None
    says_cached: bool
    output_tokens: int
    ttft_ms: float
    latency_ms: float


def conversation(random: Random, tenant: Tenant, moment: datetime) -> Iterator[Asked]:
    """Yield what one person asks from a moment on: mostly one question, sometimes a session of growing turns."""
    if tenant.head is Head.NONE:
        prompt = random.choice(_SHORT_PROMPTS).format(n=random.randint(10, 99))
        yield _asked(random, tenant, moment, {"prompt": prompt}, None, words.answer(random))
        return
    question = _popular(random, tenant)
    kind = random.random()
    if kind < 0.002:
        text = f"Please check this document:\n{words.rules(random, 'archive', _TOO_LONG_CHARACTERS)}"
        yield _refused(random, tenant, moment, _chat(tenant, moment, [_user(text)]))
    elif kind < _SESSION_SHARE[tenant.manner]:
        yield from _session(random, tenant, moment, question)
    else:
        is_rephrased = question.paraphrases and random.random() < _REPHRASED_SHARE
        text = random.choice(question.paraphrases) if is_rephrased else question.text
        yield _asked(random, tenant, moment, _chat(tenant, moment, [_user(text)]), None, question.answer)


def _session(random: Random, tenant: Tenant, moment: datetime, question: words.Question) -> Iterator[Asked]:
    session_id = f"s-{random.getrandbits(48):012x}"
    turns = [_user(f"{question.text} {words.details(random, random.choice(_DETAILS))}")]
    for _ in range(random.randint(2, _MOST_TURNS)):
        body = _chat(tenant, moment, turns)
        if sum(len(turn["content"]) for turn in body["messages"]) > _LONGEST_SESSION_CHARACTERS:
            return
        answer = f"{words.answer(random)} {words.details(random, random.choice(_DETAILS))}"
        asked = _asked(random, tenant, moment, body, session_id, answer)
        yield asked
        if asked.answer is None:
            return
        turns = [*turns, {"role": "assistant", "content": asked.answer}, _user(words.follow_up(random))]
        moment += timedelta(milliseconds=random.randrange(15_000, 90_000))


def _popular(random: Random, tenant: Tenant) -> words.Question:
    shares = [1 / (rank + 1) for rank in range(len(tenant.questions))]
    return random.choices(tenant.questions, shares)[0]


def _user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def _chat(tenant: Tenant, moment: datetime, turns: list[dict[str, Any]]) -> dict[str, Any]:
    body: dict[str, Any] = {"messages": [{"role": "system", "content": tenant.system(moment)}, *turns]}
    if tenant.tools:
        body["tools"] = tenant.tools
    if tenant.template_args is not None:
        body["chat_template_kwargs"] = tenant.template_args
    return body


def _asked(
    random: Random, tenant: Tenant, moment: datetime, body: dict[str, Any], session_id: str | None, answer: str
) -> Asked:
    draw = random.random()
    status = 200 if draw < 0.985 else random.choice((429, 500, 503))
    tokens = _tokens(body)
    cached = int(tokens * random.choice((0.0, 0.0, 0.5, 0.9))) // _BLOCK_TOKENS * _BLOCK_TOKENS
    ttft = 35.0 + 0.4 * (tokens - cached) + random.expovariate(1 / 15)
    output = max(1, len(answer) // _CHARACTERS_PER_TOKEN)
    return Asked(
        request_id=f"req-{random.getrandbits(64):016x}",
        moment=moment,
        tenant=tenant,
        body=body,
        session_id=session_id,
        answer=answer if status == 200 else None,
        status=status,
        prompt_tokens=tokens,
        cached_tokens=cached if random.random() < 0.9 else None,
        says_cached=random.random() < 0.8,
        output_tokens=output,
        ttft_ms=round(ttft, 1),
        latency_ms=round(ttft + 9.0 * output, 1),
    )


def _refused(random: Random, tenant: Tenant, moment: datetime, body: dict[str, Any]) -> Asked:
    return Asked(
        request_id=f"req-{random.getrandbits(64):016x}",
        moment=moment,
        tenant=tenant,
        body=body,
        session_id=None,
        answer=None,
        status=400,
        prompt_tokens=_tokens(body),
        cached_tokens=None,
        says_cached=False,
        output_tokens=0,
        ttft_ms=0.0,
        latency_ms=round(random.uniform(2, 6), 1),
    )


def _tokens(body: dict[str, Any]) -> int:
    texts = [body["prompt"]] if "prompt" in body else [message["content"] for message in body["messages"]]
    return (sum(map(len, texts)) + len(str(body.get("tools", "")))) // _CHARACTERS_PER_TOKEN + 1
