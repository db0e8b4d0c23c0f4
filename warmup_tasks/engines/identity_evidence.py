"""The serving identity as evidence: what is declared, reported and observed of one replica, field by field (spec 1.3).

Here the sources are put side by side on the scale of the declaration, and the engine's version is held against those
that this package was tested with. Whether what is found suffices is decided where evidence is judged.
"""

import re
from collections.abc import Iterable
from typing import NamedTuple

from warmup_tasks.engines.base import AdapterListing, Capabilities, EngineReport
from warmup_tasks.fleet_file import AdapterSpec
from warmup_tasks.identity import IdentityField, ServingIdentity

SUPPORTED_VERSIONS = ((0, 10), (0, 33))
_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "half": "float16", "fp32": "float32", "float": "float32"}
_SAYS_NOTHING = (None, "", "unknown")


class FieldEvidence(NamedTuple):
    """One row of the table: a field and what each source says of it; None: that source says nothing.

    ``evidence`` is ``observed``, ``reported``, ``unverified`` or ``contradicted``.
    """

    field: str
    declared: str | None
    reported: str | None
    observed: str | None
    evidence: str

    @property
    def is_verified(self) -> bool:
        """Whether the field was observed or reported, and nothing contradicts it."""
        return self.evidence in ("observed", "reported")


def seen_identity(
    declared: ServingIdentity,
    report: EngineReport,
    template_digest: str | None,
    *,
    weights_observed: bool = False,
) -> ServingIdentity:
    """Return the declared identity with what was reported and observed beside it.

    Args:
        declared: of the fleet file.
        report: what the engine says.
        template_digest: of the rendered fixed conversation, None where it cannot be rendered.
        weights_observed: the canary answered as it always did at the declared revision, or for the first time.
    """
    weights, dtype = declared.weights_revision.declared, declared.dtype.declared
    return declared.model_copy(
        update={
            "weights_revision": IdentityField(
                declared=weights,
                reported=report.weights_revision,
                observed=(weights or report.weights_revision or "by canary") if weights_observed else None,
            ),
            "dtype": IdentityField(declared=_DTYPES.get(dtype or "", dtype), reported=report.dtype),
            "quantization": IdentityField(declared=declared.quantization.declared, reported=report.quantization),
            "chat_template_digest": IdentityField(
                declared=declared.chat_template_digest.declared, observed=template_digest
            ),
        }
    )


def contradictions(seen: ServingIdentity, capabilities: Capabilities) -> list[str]:
    """Return one sentence per field whose sources disagree, the served names included."""
    found = seen.contradictions()
    if seen.model not in capabilities.models:
        found.insert(0, f"model: declared {seen.model!r}, served {', '.join(capabilities.models)}")
    return found


def table_of(seen: ServingIdentity, capabilities: Capabilities) -> list[FieldEvidence]:
    """Return the table of the base identity; fields of which nobody says anything are left out."""
    served = seen.model if seen.model in capabilities.models else ", ".join(capabilities.models)
    rows = [_row("model", IdentityField(declared=seen.model, reported=served))]
    fields = ((name, getattr(seen, name)) for name in type(seen).model_fields)
    rows += [_row(n, f) for n, f in fields if isinstance(f, IdentityField) and f != IdentityField()]
    return rows


def adapter_evidence(
    spec: AdapterSpec, listed: Iterable[AdapterListing], *, is_proved: bool | None = None
) -> FieldEvidence:
    """Return the row of one adapter's version: the engine reports it by the listed path, a canary observes it.

    Args:
        spec: as declared; a version has a path of its own.
        listed: what the engine lists.
        is_proved: whether the canary answered as before under that version; None: it was not asked, or tells nothing.
    """
    root = next((adapter.root for adapter in listed if adapter.name == spec.name), None)
    reported = None if root in _SAYS_NOTHING else spec.version if root == spec.path else f"path {root}"
    observed = None if is_proved is None else spec.version if is_proved else "another answer to the canary"
    field = IdentityField(declared=spec.version, reported=reported, observed=observed)
    return _row(f"adapter_version of {spec.name}", field)


def unverified(rows: Iterable[FieldEvidence]) -> list[str]:
    """Return the fields that nothing verifies."""
    return [row.field for row in rows if row.evidence == "unverified"]


def version_note(version: str) -> str | None:
    """Return what to say of an engine version that this package was not tested with, or None."""
    found = re.match(r"(\d+)\.(\d+)", version)
    low, high = (".".join(map(str, bound)) for bound in SUPPORTED_VERSIONS)
    if found is None:
        return f"the engine does not tell a version (got {version!r}); tested with vLLM {low} to {high}"
    if not SUPPORTED_VERSIONS[0] <= (int(found[1]), int(found[2])) <= SUPPORTED_VERSIONS[1]:
        return f"vLLM {version} was not tested with this package: {low} to {high} were"
    return None


def _row(name: str, field: IdentityField) -> FieldEvidence:
    evidence = "contradicted" if field.contradiction else str(field.source)
    return FieldEvidence(name, field.declared, field.reported, field.observed, evidence)
