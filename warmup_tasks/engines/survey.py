"""The survey before planning: what each replica is, what it says of its identity, how fast it prefills.

Asks engines and describes; plans nothing, and does not know where the published epochs come from.
"""

import asyncio
import logging
import random
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple
from urllib.parse import urlsplit

from warmup_tasks.engines.base import Engine, GenerationRequest
from warmup_tasks.engines.canary import unused_label
from warmup_tasks.engines.identity_evidence import contradictions, seen_identity, version_note
from warmup_tasks.engines.observation import chat_template_digest
from warmup_tasks.engines.processes import check_one_process
from warmup_tasks.errors import GiveUpError, RejectItemError, WarmupError
from warmup_tasks.fleet_file import FleetFile, ReplicaSpec
from warmup_tasks.identity import digest
from warmup_tasks.items import PromptBody, ReplicaState

logger = logging.getLogger(__name__)

SHORT_TOKENS, LONG_TOKENS, PREFILLS = 64, 512, 3
_ALPHABET = "def read(path): for line in open(path): yield line.strip(); return None; class Reader: pass; import os"


class Survey(NamedTuple):
    """States of the replicas that answered, and why the others did not, by name."""

    states: list[ReplicaState]
    problems: dict[str, str]


class PrefillSpeed(NamedTuple):
    """A straight line through two measured prefills."""

    base_ms: float
    ms_per_token: float
    probe_tokens: int
    has_usage_details: bool


async def survey(
    fleet: FleetFile,
    run_id: str,
    epochs: Mapping[str, str | None],
    *,
    open_engine: Callable[[ReplicaSpec], Engine],
    deadline_s: float,
    seed: int,
    replicas: Collection[str] = (),
) -> Survey:
    """Survey the fleet's replicas: hosts side by side, one host's replicas in turn, so that each is measured alone.

    Args:
        fleet: the declared fleet.
        run_id: the run that the states belong to.
        epochs: replica → epoch that the agent has published; unknown is None.
        open_engine: opens the engine of a replica.
        deadline_s: for each replica as a whole; one that takes longer counts as unreachable.
        seed: of the random tokens that are prefilled.
        replicas: only these names; empty means all.

    Returns:
        States in the fleet's order. A replica that does not answer is left out, logged, and named under ``problems``.
    """
    chosen = [replica for replica in fleet.replicas if not replicas or replica.name in replicas]

    turns: defaultdict[str | None, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def one(replica: ReplicaSpec) -> ReplicaState | str:
        try:
            async with turns[urlsplit(replica.url).hostname], asyncio.timeout(deadline_s):
                await check_one_process(open_engine, replica, deadline_s=deadline_s)
                async with open_engine(replica) as engine:
                    return await _state(engine, replica, fleet, run_id, epochs.get(replica.name), deadline_s, seed)
        except TimeoutError:
            return f"no survey within {deadline_s:.0f} s"
        except WarmupError as error:
            return str(error)

    found = await asyncio.gather(*(one(replica) for replica in chosen))
    states = [state for state in found if isinstance(state, ReplicaState)]
    problems = {r.name: state for r, state in zip(chosen, found, strict=True) if isinstance(state, str)}
    for name, problem in problems.items():
        logger.warning("replica %s is left out: %s", name, problem)
    return Survey(states, problems)


async def prefill_speed(engine: Engine, model: str, max_tokens: int, *, deadline_s: float, seed: int) -> PrefillSpeed:
    """Fit time to first token = base + tokens · slope through cold prefills of two lengths.

    Each length is sent three times: the first is dropped, of the others the faster counts, since what disturbs only
    adds.

    Tokens are random, and this process has never seen the requests' salts: a repeated survey measures cold again.

    Args:
        engine: the replica.
        model: the base model's served name.
        max_tokens: the model's context.
        deadline_s: of each request.
        seed: of the tokens.
    """
    alphabet = sorted(set(await engine.tokenize(PromptBody(prompt=_ALPHABET), model, deadline_s=deadline_s)))
    label = unused_label(await engine.metrics(deadline_s=deadline_s))
    random_tokens = random.Random(seed)
    long = max(2, min(LONG_TOKENS, max_tokens - 1))
    short = min(SHORT_TOKENS, long // 2)
    ttft_ms: dict[int, list[float]] = {short: [], long: []}
    has_usage_details = False
    for turn, length in enumerate((short, long) * PREFILLS):
        salt = digest({"survey": turn, "label": label})
        body = PromptBody(token_ids=random_tokens.choices(alphabet, k=length))
        answer = await engine.generate(GenerationRequest(body, model, cache_salt=salt), deadline_s=deadline_s)
        ttft_ms[length].append(answer.ttft_ms)
        has_usage_details = has_usage_details or answer.cached_tokens is not None
    fast_ms, slow_ms = min(ttft_ms[short][1:]), min(ttft_ms[long][1:])
    slope = max((slow_ms - fast_ms) / (long - short), 0.0)
    base_ms = max(fast_ms - slope * short, 0.0)
    return PrefillSpeed(base_ms, slope, PREFILLS * (short + long), has_usage_details)


async def _state(
    engine: Engine,
    replica: ReplicaSpec,
    fleet: FleetFile,
    run_id: str,
    epoch: str | None,
    deadline_s: float,
    seed: int,
) -> ReplicaState:
    capabilities = await engine.capabilities(deadline_s=deadline_s)
    report = await engine.report(deadline_s=deadline_s)
    template_digest = await chat_template_digest(engine, replica.model, deadline_s=deadline_s)
    declared = fleet.identity(replica.model)
    problems = contradictions(seen_identity(declared, report, template_digest), capabilities)
    note = version_note(capabilities.version) if capabilities.engine == "vllm" else None
    notes = [*capabilities.notes, *([note] if note else [])]
    try:
        speed = await prefill_speed(engine, report.model, capabilities.max_model_len, deadline_s=deadline_s, seed=seed)
    except RejectItemError as refusal:
        raise GiveUpError(f"the prefill could not be measured: {refusal}") from refusal
    if speed.ms_per_token == 0.0:
        notes.append("prefill time did not grow with the prompt in the survey: gains are not predictable")
    if template_digest is not None:
        notes.append(f"chat_template_digest observed: {template_digest}")
    if epoch is None:
        notes.append("no epoch is published: is the agent running?")
    return ReplicaState(
        run_id=run_id,
        replica=replica.name,
        profile=replica.profile,
        model=replica.model,
        engine=capabilities.engine,
        version=capabilities.version,
        epoch=epoch,
        identity_digest=declared.digest(),
        contradictions=problems,
        block_size=capabilities.block_size,
        capacity_tokens=capabilities.capacity_tokens,
        max_model_len=capabilities.max_model_len,
        has_usage_details=speed.has_usage_details,
        has_runtime_adapters=capabilities.has_runtime_adapters,
        base_ms=speed.base_ms,
        prefill_ms_per_token=speed.ms_per_token,
        probe_tokens=speed.probe_tokens,
        notes=notes,
        max_adapters=(await engine.metrics(deadline_s=deadline_s)).max_adapters,
    )
