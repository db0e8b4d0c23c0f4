"""Probing one replica: identity, adapters, prefixes hottest first, and only then the controls (spec 6.4, 6.5).

The order is the point. A probe that misses writes, and a control always does: whatever is asked about later may be
evicted by it, so the items that matter most come first and the controls last.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from datetime import datetime

from warmup_tasks.engines.attempts import attempt, scrape
from warmup_tasks.engines.base import AdapterListing, Engine, GenerationRequest
from warmup_tasks.engines.canary import Answer, unused_label
from warmup_tasks.errors import RejectItemError, RetryLaterError
from warmup_tasks.fleet_file import ReplicaSpec
from warmup_tasks.identity import digest
from warmup_tasks.items import EvidenceKind, ItemKind, PlanRow, PromptBody, Reason, Residency
from warmup_tasks.lake.records import Key, key_of
from warmup_tasks.serving.epochs import EpochStore
from warmup_tasks.validation.answers import answer_of, compare
from warmup_tasks.validation.chains import FirstLooks
from warmup_tasks.validation.evictions import Displacement, half_turnover_s, others_tokens
from warmup_tasks.validation.identity_check import check_adapter, check_identity
from warmup_tasks.validation.looks import Finding, ReplicaFindings
from warmup_tasks.validation.meter import Look, Meter
from warmup_tasks.validation.night import Night, is_prefix
from warmup_tasks.validation.witness import Witness

CONTROL_TOKENS = 512
"""A control is the head of its prompt: ignored salts show in the first blocks, or in the first chunks of an offload.
Where the cache has no room for so much, it is shorter: a control must not evict what was just proved."""
_CANARY_BLOCKS = 8
"""Room that a canary needs, at the most; the last ones follow the controls."""
_TRIES = 3


class ReplicaProbe:
    """One round of looks at one replica."""

    def __init__(
        self,
        night: Night,
        replica: ReplicaSpec,
        rows: Sequence[PlanRow],
        epochs: EpochStore,
        now: Callable[[], datetime],
    ) -> None:
        self._night, self._replica, self._rows, self._epochs, self._now = night, replica, rows, epochs, now
        self._deadline_s = night.run.policy.request_deadline_s
        self._found = ReplicaFindings()

    async def run(self, open_engine: Callable[[ReplicaSpec], Engine]) -> ReplicaFindings:
        """Return what was found.

        A replica that stops answering leaves all its items unproved: a hit counts only when the weights were seen to be
        the same, and the cache large enough, after all looks.
        """
        async with open_engine(self._replica) as engine:
            try:
                await self._look(engine)
            except RetryLaterError:
                nothing = Finding()
                for key in map(key_of, self._rows):
                    seen = self._found.findings.get(key, nothing)
                    if not seen.refusal and seen.residency is not Residency.MISS:
                        self._found.findings[key] = replace(seen, refusal=Reason.ENGINE_UNAVAILABLE)
        self._found.epoch_after = self._epoch()
        return self._found

    async def _look(self, engine: Engine) -> None:
        found, meter = self._found, Meter(engine, self._deadline_s)
        found.epoch_before = self._epoch()
        before, started_at = await scrape(engine, deadline_s=self._deadline_s), self._now()
        label, books = unused_label(before), Displacement(before.capacity_blocks, before.block_size)
        found.looked_from = started_at
        async with Witness.beside(engine, before.block_size) as witness:
            try:
                await self._identity(engine, meter, f"{label}:before")
                await self._adapters(engine, meter, f"{label}:before")
                await self._hear(witness, meter, f"{label}:before")
                await self._prefixes(engine, meter, books, witness, before.block_size)
            finally:
                found.probe_tokens = meter.computed_tokens
            try:
                await self._controls(meter, books, label, before.block_size)
                told_by_then = meter.computed_tokens
                await self._last_canaries(engine, meter, label)
                await self._hear(witness, meter, f"{label}:after")
                afterwards = meter.computed_tokens - told_by_then
                books.used(None, (), afterwards + self._canaries() * before.block_size)
            finally:
                found.control_tokens = meter.computed_tokens - found.probe_tokens
            after = await scrape(engine, deadline_s=self._deadline_s)
            took_s = (self._now() - started_at).total_seconds()
            others = others_tokens(before, after, meter.least_computed_tokens)
            found.half_turnover_s = half_turnover_s(after, others, took_s)
            self._doubt(books.doubtful(others), witness)

    def _doubt(self, doubtful: Collection[Key], witness: Witness) -> None:
        """Take back hits that may have been displaced since; events, where they still speak, decide for themselves."""
        for row in filter(is_prefix, self._rows):
            key = key_of(row)
            seen = self._found.findings.get(key)
            if seen is None or seen.residency is not Residency.HIT or seen.refusal:
                continue
            if self._is_shown(witness, row):
                continue
            if key in doubtful or seen.evidence_kind is EvidenceKind.KV_EVENTS:
                self._found.findings[key] = replace(seen, refusal=Reason.MAYBE_EVICTED)

    async def _hear(self, witness: Witness, meter: Meter, label: str) -> None:
        row = next(filter(is_prefix, self._rows), None)
        if row is not None:
            await witness.hear(meter, row, self._night.token_ids(row), digest([label, "witness"]))

    def _is_shown(self, witness: Witness, row: PlanRow) -> bool:
        expected = self._night.plan.payload(row).expected_cached_tokens
        return witness.shows(row, self._night.token_ids(row), expected)

    async def _identity(self, engine: Engine, meter: Meter, label: str) -> None:
        check = await check_identity(
            engine,
            self._replica,
            self._night.fleet,
            lake=self._night.lake,
            run_id=self._night.run.run_id,
            epoch=self._found.epoch_before,
            unused_salt=digest([label, "fingerprint"]),
            meter=meter,
            tolerance=self._night.run.policy.logprob_tolerance,
            deadline_s=self._deadline_s,
            is_after_warming=any(map(is_prefix, self._rows)),
        )
        self._found.identity |= {row.field: row for row in check.fields}
        self._found.contradictions = list(dict.fromkeys([*self._found.contradictions, *check.contradictions]))

    async def _last_canaries(self, engine: Engine, meter: Meter, label: str) -> None:
        """Ask the base model, then the adapters; an adapter that answers otherwise may do so because of the weights."""
        await self._identity(engine, meter, f"{label}:after")
        known = dict(self._found.refused_adapters)
        await self._adapters(engine, meter, f"{label}:after")
        if self._found.refused_adapters != known:
            await self._identity(engine, meter, f"{label}:last")

    async def _adapters(self, engine: Engine, meter: Meter, label: str) -> None:
        rows = [row for row in self._rows if row.kind is ItemKind.ADAPTER]
        if not rows:
            return
        listed = await attempt(lambda left_s: engine.adapters(deadline_s=left_s), deadline_s=self._deadline_s)
        for row in rows:
            finding = await self._adapter(engine, meter, row, listed, digest([label, "fingerprint", row.adapter]))
            self._found.findings[key_of(row)] = finding
            if finding.refusal or finding.residency is not Residency.HIT:
                self._found.refused_adapters[row.adapter or ""] = finding.refusal or Reason.RESIDENCY_MISS

    async def _adapter(
        self, engine: Engine, meter: Meter, row: PlanRow, listed: Sequence[AdapterListing], unused_salt: str
    ) -> Finding:
        name, roots = row.adapter or "", {adapter.name: adapter.root for adapter in listed}
        spec = self._night.fleet.adapter(name)
        kind = EvidenceKind.ADAPTER_LISTING
        if name not in roots:
            return Finding(Residency.MISS, kind)
        if spec is None or roots[name] != spec.path:
            return Finding(Residency.MISS, kind, refusal=Reason.ADAPTER_PATH_DIFFERS)
        try:
            seen = await check_adapter(
                engine,
                self._replica.name,
                spec,
                self._night.fleet.model(spec.base_model).weights_revision,
                listed,
                lake=self._night.lake,
                unused_salt=unused_salt,
                meter=meter,
                tolerance=self._night.run.policy.logprob_tolerance,
                deadline_s=self._deadline_s,
            )
        except RejectItemError as error:
            return Finding(Residency.MISS, kind, refusal=error.reason)
        self._found.identity[seen.field] = seen
        is_other = seen.evidence == "contradicted"
        return Finding(Residency.HIT, kind, refusal=Reason.ADAPTER_STALE_PATH if is_other else "")

    async def _prefixes(
        self, engine: Engine, meter: Meter, books: Displacement, witness: Witness, block_size: int
    ) -> None:
        """Find every prefix once: by events where they show it and it is no sample, else by a look, hottest first.

        The sample also tells whether events can be believed: where it finds missing what they showed, all are asked.
        """
        looks = FirstLooks(block_size)
        rows = sorted((row for row in self._rows if is_prefix(row)), key=lambda row: row.order)
        shown = {key_of(row) for row in rows if self._is_shown(witness, row)}
        unasked = shown - self._night.sample
        told = [row for row in rows if key_of(row) in unasked]
        for row in told:
            self._use(books, self._chain(looks, row), row)
        asked = [row for row in rows if key_of(row) not in unasked]
        await self._ask(engine, meter, books, looks, asked)
        missed = (
            self._found.findings[key_of(row)].residency is Residency.MISS for row in asked if key_of(row) in shown
        )
        if any(missed):
            witness.doubt()
            await self._ask(engine, meter, books, looks, told)
            return
        for row in told:
            expected = self._night.plan.payload(row).expected_cached_tokens
            self._found.findings[key_of(row)] = Finding(Residency.HIT, EvidenceKind.KV_EVENTS, expected)

    def _chain(self, looks: FirstLooks, row: PlanRow) -> list[bytes]:
        expected = self._night.plan.payload(row).expected_cached_tokens
        return looks.chain(row.adapter or row.model, row.cache_salt, self._night.token_ids(row), expected)

    def _use(self, books: Displacement, chain: Sequence[bytes], row: PlanRow) -> None:
        request = self._request(row)
        books.used(key_of(row), chain, len(request.body.token_ids or []) + request.max_tokens)

    async def _ask(
        self, engine: Engine, meter: Meter, books: Displacement, looks: FirstLooks, rows: Sequence[PlanRow]
    ) -> None:
        """Look at prefixes, hottest first; ``order`` ascends towards the hottest."""
        for row in reversed(rows):
            expected = self._night.plan.payload(row).expected_cached_tokens
            chain = self._chain(looks, row)
            known = looks.state(chain)
            if known is not None:
                self._found.findings[key_of(row)] = Finding(known)
                continue
            self._use(books, chain, row)
            try:
                look = await meter.look(self._request(row))
            except RejectItemError as error:
                self._found.findings[key_of(row)] = Finding(refusal=error.reason)
            except RetryLaterError:
                looks.spoiled(chain)
                self._found.findings[key_of(row)] = Finding(refusal=Reason.ENGINE_UNAVAILABLE)
                await scrape(engine, deadline_s=self._deadline_s)
            else:
                if look.cached_tokens is None:
                    looks.spoiled(chain)
                else:
                    looks.saw(chain, look.cached_tokens)
                self._found.findings[key_of(row)] = self._finding(row, look, expected)

    def _request(self, row: PlanRow) -> GenerationRequest:
        is_sampled = key_of(row) in self._night.sample
        return GenerationRequest(
            PromptBody(token_ids=self._night.token_ids(row)),
            row.adapter or row.model,
            max_tokens=self._night.run.policy.answer_tokens if is_sampled else 1,
            cache_salt=row.cache_salt,
            with_logprobs=is_sampled,
        )

    def _finding(self, row: PlanRow, look: Look, expected: int) -> Finding:
        if look.cached_tokens is None:
            return Finding(ttft_ms=look.generation.ttft_ms)
        is_hit = expected > 0 and look.cached_tokens >= expected
        return Finding(
            Residency.HIT if is_hit else Residency.MISS,
            look.evidence_kind,
            look.cached_tokens,
            look.generation.ttft_ms,
            self._is_answer_equal(row, look),
        )

    def _is_answer_equal(self, row: PlanRow, look: Look) -> bool | None:
        twin = self._night.twins.get(key_of(row))
        if twin is None or twin.error is not None or key_of(row) not in self._night.sample:
            return None
        cold = answer_of(twin.answer_tokens, twin.answer_logprobs, twin.answer_top_json)
        return compare(cold, Answer.of(look.generation), self._night.run.policy.logprob_tolerance).is_equal

    async def _controls(self, meter: Meter, books: Displacement, label: str, block_size: int) -> None:
        """Ask the head of every sampled prompt behind a salt that nobody used: it must miss.

        They take the room that is left, at least one block for one of them; where it is short, fewer are asked.
        """
        rows = [row for row in self._rows if is_prefix(row) and key_of(row) in self._night.sample]
        room = max(1, books.room() - self._canaries() * _CANARY_BLOCKS)
        blocks = min(max(1, CONTROL_TOKENS // block_size), max(1, room // max(1, len(rows))))
        for row in rows[: max(1, room // blocks)]:
            tokens = self._night.token_ids(row)[: blocks * block_size + 1]
            self._found.control_missed[key_of(row)] = await self._control(meter, books, row, label, tokens)

    def _canaries(self) -> int:
        """Return how many canaries follow the controls: two of the base model, one an adapter, the witness's block."""
        return 3 + sum(row.kind is ItemKind.ADAPTER for row in self._rows)

    async def _control(
        self, meter: Meter, books: Displacement, row: PlanRow, label: str, tokens: list[int]
    ) -> bool | None:
        for turn in range(_TRIES):
            salt = self._night.other_salt(row, "control", f"{label}:{turn}")
            request = GenerationRequest(PromptBody(token_ids=tokens), row.adapter or row.model, cache_salt=salt)
            books.used(None, (), len(tokens) + request.max_tokens)
            try:
                look = await meter.look(request)
            except RejectItemError:
                return None
            except RetryLaterError:
                continue
            return None if look.cached_tokens is None else look.cached_tokens == 0
        return None

    def _epoch(self) -> str | None:
        record = self._epochs.read(self._replica.name)
        return record.epoch if record else None
