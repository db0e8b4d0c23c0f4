"""A whole night as schema-true data sets in a real lake, without an engine: what the reporting room reads."""

from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pytest

from warmup_tasks.items import (
    Arm,
    Evidence,
    EvidenceKind,
    GainBasis,
    ItemKind,
    Mark,
    Outcome,
    PlanRow,
    Reason,
    Receipt,
    ReplayRow,
    ReplicaState,
    Residency,
    TwinResult,
)
from warmup_tasks.lake import schemas
from warmup_tasks.lake.store import Lake
from warmup_tasks.runs import Run
from warmup_tasks.settings import RunRequest
from warmup_tasks.sources.account import ExtractionSummary, FileRead
from warmup_tasks.validation.publish import STRATA

AS_OF = datetime(2026, 11, 27, 2, tzinfo=UTC)
SECRET = "the secret recipe of the customer"
IDENTITY = "ab" * 32
REPLICAS = {"large-0": "large", "small-0": "small"}
KINDS = [ItemKind.EMBEDDING] * 12 + [ItemKind.ADAPTER] * 4 + [ItemKind.RESPONSE] * 10 + [ItemKind.KV_PREFIX] * 60


class Night:
    """Builds a run's data sets. Item ``i`` of kind ``k`` on replica ``r`` fares as :meth:`fate` says."""

    def __init__(self, lake: Lake, seed: int = 7) -> None:
        self.lake = lake
        self.run = Run.of(RunRequest(as_of=AS_OF, measure_window_s=300, seed=seed))
        self.random = np.random.default_rng(seed)
        self.plan: list[PlanRow] = []
        self.receipts: list[Receipt] = []
        self.evidence: list[Evidence] = []
        self.twins: list[TwinResult] = []
        self.marks: list[Mark] = []

    def add_item(self, kind: ItemKind, number: int, replica: str | None) -> None:
        """Plan one item, and carry it out and probe it where its fate says so."""
        item = f"{kind.value[:2]}{number:030d}"
        store = replica is None
        profile = "large" if store else REPLICAS[replica]
        tokens = 0 if kind is ItemKind.ADAPTER else 512 + 64 * (number % 20)
        held_out, too_big = number % 19 == 7, number % 13 == 11
        self.plan.append(
            PlanRow(
                run_id=self.run.run_id, as_of=AS_OF, horizon_s=86_400, policy="adaptive", parameters_version="p1",
                seed=7, item_id=item, kind=kind, wave=3, order=number, queue=f"gpu.{profile}",
                shard=f"{profile}.w3.{replica}", profile=profile, replica=replica,
                tenant=f"tenant-{number % 3}", cache_salt=None, model="m",
                adapter=None, identity_digest=IDENTITY, payload_sha256=None, depends_on=[],
                subtree_root=f"root{number % 8}",
                prompt_tokens=tokens, unique_tokens=tokens // 2, heat=100.0 - number, expected_uses=5.0,
                expected_gain_ms=40.0, expected_cost_ms=20.0, assignment_probability=0.95,
                arm=Arm.HOLDOUT if held_out else Arm.WARM, is_chosen=not (held_out or too_big),
                reason=Reason.HOLDOUT if held_out else Reason.OVER_CAPACITY if too_big else "",
            )
        )  # fmt: skip
        if not (held_out or too_big):
            self._carry_out(kind, number, item, replica, profile, tokens)

    def _carry_out(
        self, kind: ItemKind, number: int, item: str, replica: str | None, profile: str, tokens: int
    ) -> None:
        outcome, reason = Outcome.WARMED, ""
        if number % 17 == 5:
            outcome, reason = Outcome.SKIPPED, f"{Reason.DEPENDENCY_FAILED}: adapter legal-v2"
        elif number % 23 == 3:
            outcome, reason = Outcome.FAILED, f"{Reason.ENGINE_UNAVAILABLE}: timed out after 120 s"
        epoch = None if replica is None else f"{replica}-e1"
        self.receipts.append(
            Receipt(
                run_id=self.run.run_id, as_of=AS_OF, item_id=item, kind=kind, profile=profile, replica=replica,
                tenant=None, model="m", adapter=None, identity_digest=IDENTITY, wave=3, order=number, shard="s",
                outcome=outcome, reason=reason, replica_epoch=epoch, started_at=AS_OF, finished_at=AS_OF,
                prompt_tokens=tokens, computed_tokens=None if number % 10 == 0 else tokens // 2, ttft_ms=30.0,
                arm=Arm.WARM, assignment_probability=0.95, expected_gain_ms=40.0,
            )
        )  # fmt: skip
        if outcome is Outcome.WARMED:
            self._probe(kind, number, item, replica, profile, tokens, epoch)

    def _probe(
        self, kind: ItemKind, number: int, item: str, replica: str | None, profile: str, tokens: int, epoch: str | None
    ) -> None:
        residency, reason = Residency.HIT, ""
        if kind is ItemKind.KV_PREFIX and number % 11 == 1:
            residency, reason = Residency.MISS, Reason.RESIDENCY_MISS
        elif kind is ItemKind.KV_PREFIX and number % 29 == 2:
            residency, reason = Residency.UNVERIFIED, Reason.RESIDENCY_UNVERIFIED
        sampled = kind is ItemKind.KV_PREFIX and number % 2 == 0
        cold = float(self.random.gamma(8, 9 if profile == "large" else 16))
        warm = float(cold * self.random.uniform(0.2, 0.45) + 4) if residency is Residency.HIT else cold
        stratum = f"{profile} tenant-{number % 3} {512 if number % 20 < 9 else 1024}+"
        self.evidence.append(
            Evidence(
                run_id=self.run.run_id, item_id=item, kind=kind, profile=profile, replica=replica, tenant=None,
                adapter=None, stratum=stratum if kind is ItemKind.KV_PREFIX else str(kind), replica_epoch=epoch,
                is_identity_ok=True, residency=residency,
                evidence_kind=EvidenceKind.CACHED_TOKENS if replica else EvidenceKind.STORED_VALUE,
                cached_tokens=tokens if residency is Residency.HIT else None, expected_cached_tokens=tokens,
                is_sampled=sampled, ttft_cold_ms=cold if sampled else None, ttft_warm_ms=warm if sampled else None,
                is_answer_equal=True if sampled else None, is_control_missed=True if number % 8 == 0 else None,
                gain_ms=cold - warm if sampled else 30.0,
                gain_basis=GainBasis.MEASURED if sampled else GainBasis.INFERRED,
                is_ready=residency is Residency.HIT, reason=reason,
            )
        )  # fmt: skip
        if sampled and replica is not None:
            self.twins.append(
                TwinResult(
                    run_id=self.run.run_id, item_id=item, replica=replica, stratum=stratum, replica_epoch=epoch,
                    ttft_ms=cold, prompt_tokens=tokens, cached_tokens=0, answer_tokens=[SECRET], answer_logprobs=[-0.1],
                    answer_top_json="[]", error=None,
                )
            )  # fmt: skip
        if residency is Residency.HIT:
            self.marks.append(
                Mark(
                    item_id=item, kind=kind, tenant=None, replica=replica, model="m", adapter=None,
                    identity_digest=IDENTITY, epoch=epoch, run_id=self.run.run_id, as_of=AS_OF, marked_at=AS_OF,
                    expires_at=AS_OF + timedelta(hours=8), residency=residency,
                    evidence_kind=EvidenceKind.CACHED_TOKENS, gain_basis=GainBasis.INFERRED,
                )
            )  # fmt: skip

    def plan_meta(self) -> dict:
        """What a plan says beside its rows: every refusal counted, also of candidates without a row."""
        reasons: dict[str, dict[str, int]] = {}
        for row in self.plan:
            if not row.is_chosen:
                counts = reasons.setdefault(row.kind, {})
                counts[row.reason] = counts.get(row.reason, 0) + 1
        reasons["kv_prefix"][Reason.VOLATILE_HEAD] = 41
        capacity = {name: {"plan_blocks": 2048} for name in REPLICAS}
        return {"shards": {}, "reasons": reasons, "capacity": capacity}

    def survey(self) -> None:
        """Publish the two replicas' states."""
        states = [
            ReplicaState(
                run_id=self.run.run_id, replica=name, profile=profile, model="m", engine="double", version="0.1.0",
                epoch=f"{name}-e1", identity_digest=IDENTITY, contradictions=[], block_size=16,
                capacity_tokens=65_536 if profile == "large" else 36_864, max_model_len=8192, has_usage_details=True,
                has_runtime_adapters=True, base_ms=4.0, prefill_ms_per_token=0.05 if profile == "large" else 0.09,
                probe_tokens=256, notes=[],
            )
            for name, profile in REPLICAS.items()
        ]  # fmt: skip
        self.lake.publish("replicas", self.run.run_id, {"replicas": schemas.to_table(states, ReplicaState)})

    def read_log(self, requests: int = 300) -> None:
        """Publish the requests of the window after as_of, what was read, and the heat of the day before."""
        rows = [
            {"request_id": f"r{n}", "time": AS_OF + timedelta(seconds=n * 300 / requests), "answer_text": SECRET}
            for n in range(requests)
        ]
        table = pa.Table.from_pylist(rows, schema=schemas.REQUESTS)
        self.lake.publish("requests", f"{AS_OF:%Y-%m-%d}", {"requests": table})
        names = ["day-1.jsonl", "day-2.jsonl"]
        meta = ExtractionSummary(
            requests_read=5340, requests_usable=5321, usable_by_use={"warm": 5321}, feedback_rows=6, rows_quarantined=4,
            quarantined_by_reason={"not JSON": 3, "no time": 1}, duplicates=9, not_a_request=0,
            not_a_request_by_ground={}, first_time=AS_OF, last_time=AS_OF, models=["m"], adapters=[],
            tenants=3, salts=0,
            files=[FileRead(file=name, format="normalised", ground="", records=2670) for name in names],
            days=[], refs=[],
        ).model_dump(mode="json")  # fmt: skip
        files = pa.table({"file": names})
        self.lake.publish("extractions", self.run.run_id, {"files": files}, meta)

    def demand(self) -> None:
        """Publish the heat map of the day before: one request 4 s before as_of, three 25 h before."""
        ages_s = [(4, 7, 1), (90_000, 3, 3), (86_399, 63, 2), (901, 7, 5)]
        rows = [{"window_index": age // 5, "bucket": bucket, "requests": n} for age, bucket, n in ages_s]
        self.lake.publish("demand", self.run.run_id, {"heat_cells": pa.Table.from_pylist(rows)})

    def replay(self, requests: int = 300) -> None:
        """Publish both arms; every tenth request's hits were not told, and every tenth failed cold."""
        for arm, rate in (("cold", 0.18), ("warm", 0.81)):
            rows = [self._replayed(arm, n, min(rate + n / 3000, 1)) for n in range(requests)]
            self.lake.publish("replay", f"{self.run.run_id}.large.{arm}", {"replay": schemas.to_table(rows, ReplayRow)})

    def _replayed(self, arm: str, n: int, rate: float) -> ReplayRow:
        has_failed = arm == "cold" and n % 10 == 3
        hit_blocks = int(self.random.binomial(20, rate))
        return ReplayRow(
            run_id=self.run.run_id, profile="large", replica="large-0", arm=arm, request_id=f"r{n}", prompt_tokens=330,
            cached_tokens=None, full_blocks=20, hit_blocks=None if has_failed or n % 10 == 0 else hit_blocks,
            ttft_ms=20.0, error=Reason.ENGINE_REFUSED if has_failed else None,
        )  # fmt: skip

    def judge(self, *, is_published: bool = True) -> None:
        """Publish marks, quarantine and strata; one item that was hit is quarantined with its stratum."""
        quarantined = [row for row in self.evidence if not row.is_ready]
        strata = [
            {
                "run_id": self.run.run_id, "stratum": name, "items": 9, "pairs": 4, "gain_ms": 40.0,
                "gain_low_ms": 21.5, "gain_high_ms": 63.0,
                "reason": Reason.SLOWER_THAN_COLD if name == "small tenant-2 1024+" else "",
            }
            for name in sorted({row.stratum for row in self.evidence if row.is_sampled})
        ]  # fmt: skip
        tables = {
            "marks": schemas.to_table(self.marks if is_published else [], Mark),
            "quarantine": schemas.to_table(quarantined, Evidence),
            "strata": pa.Table.from_pylist(strata, schema=STRATA),
        }
        meta = {"is_published": is_published, "failure_share": 0.1, "broken_expectations": []}
        self.lake.publish("marks", self.run.run_id, tables, meta)

    def publish(self) -> "Night":
        """Build and publish everything."""
        for kind in dict.fromkeys(KINDS):
            for number in range(KINDS.count(kind)):
                is_store = kind in (ItemKind.EMBEDDING, ItemKind.RESPONSE)
                for replica in (None,) if is_store else REPLICAS:
                    self.add_item(kind, number, replica)
        self.survey()
        self.read_log()
        run_id, lake = self.run.run_id, self.lake
        lake.publish("plan", run_id, {"plan": schemas.to_table(self.plan, PlanRow)}, self.plan_meta())
        lake.publish("twins", f"{run_id}.large", {"twins": schemas.to_table(self.twins, TwinResult)})
        for profile in ("large", "small"):
            receipts = [row for row in self.receipts if row.profile == profile]
            evidence = [row for row in self.evidence if row.profile == profile]
            spent = {"computed_tokens": {"probes": 300, "controls": 4000}}
            lake.publish("receipts", f"{run_id}.{profile}.w3.0", {"receipts": schemas.to_table(receipts, Receipt)})
            lake.publish("evidence", f"{run_id}.{profile}", {"evidence": schemas.to_table(evidence, Evidence)}, spent)
        self.judge()
        self.demand()
        self.replay()
        return self


@pytest.fixture
def lake(tmp_path) -> Lake:
    """An empty lake."""
    return Lake(str(tmp_path / "lake"))


@pytest.fixture
def night(lake: Lake) -> Night:
    """A whole run in the lake."""
    return Night(lake).publish()
