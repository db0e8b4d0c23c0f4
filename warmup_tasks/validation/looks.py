"""What was seen of one item: the shape in which probes hand their findings to the evidence. Types only."""

from dataclasses import dataclass, field

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

    ``control_missed`` holds the sampled items' controls; ``half_turnover_s`` is the time in which live traffic fills
    half of the cache, None where it added nothing while the looks lasted.
    """

    epoch_before: str | None = None
    epoch_after: str | None = None
    contradictions: list[str] = field(default_factory=list)
    findings: dict[Key, Finding] = field(default_factory=dict)
    control_missed: dict[Key, bool | None] = field(default_factory=dict)
    probe_tokens: int = 0
    control_tokens: int = 0
    half_turnover_s: float | None = None

    @property
    def are_salts_kept(self) -> bool | None:
        """False when any control hit, True when some missed and none hit, None when none told."""
        told = [missed for missed in self.control_missed.values() if missed is not None]
        return all(told) if told else None
