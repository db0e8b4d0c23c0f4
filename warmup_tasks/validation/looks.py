"""What was seen of one item: the shape in which probes hand their findings to the evidence. Types only."""

from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime

from warmup_tasks.engines.identity_evidence import FieldEvidence
from warmup_tasks.items import EvidenceKind, Residency
from warmup_tasks.lake.records import Key


@dataclass(frozen=True, slots=True)
class Finding:
    """What the first look at one item told. ``refusal`` is why it told nothing, "" where it did."""

    residency: Residency = Residency.UNVERIFIED
    evidence_kind: EvidenceKind = EvidenceKind.NONE
    cached_tokens: int | None = None
    ttft_ms: float | None = None
    is_answer_equal: bool | None = None
    refusal: str = ""


@dataclass(slots=True)
class ReplicaFindings:
    """Everything that one round of looks at one replica told.

    ``identity`` is the table of the identity by field, ``refused_adapters`` name → why nothing of it may be trusted;
    ``control_missed`` holds the sampled items' controls; ``half_turnover_s`` is the time in which live traffic fills
    half of the cache, None where it added nothing while the looks lasted; ``looked_from`` is when these began.
    """

    epoch_before: str | None = None
    epoch_after: str | None = None
    contradictions: list[str] = field(default_factory=list)
    identity: dict[str, FieldEvidence] = field(default_factory=dict)
    refused_adapters: dict[str, str] = field(default_factory=dict)
    findings: dict[Key, Finding] = field(default_factory=dict)
    control_missed: dict[Key, bool | None] = field(default_factory=dict)
    probe_tokens: int = 0
    control_tokens: int = 0
    half_turnover_s: float | None = None
    looked_from: datetime | None = None

    def missing(self, required: Collection[str]) -> list[str]:
        """Return the required identity fields that nothing verified, as far as the table speaks of them."""
        return [
            name
            for name, row in self.identity.items()
            if name.split(" ")[0] in required and row.evidence == "unverified"
        ]

    @property
    def are_salts_kept(self) -> bool | None:
        """False when any control hit, True when some missed and none hit, None when none told."""
        told = [missed for missed in self.control_missed.values() if missed is not None]
        return all(told) if told else None
