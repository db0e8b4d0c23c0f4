"""The run's page: one self-contained HTML file, no external resource, no prompt text.

Here live the page's parts that are words and tables; the drawing is in ``plots.py``, the look in ``templates/``.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import pyarrow as pa

from warmup_tasks.parameters import GoldenParameters
from warmup_tasks.reporting.model import HitRatio, ReasonCount, RunSummary, Tuning
from warmup_tasks.reporting.plots import all_plots
from warmup_tasks.reporting.svg import number
from warmup_tasks.reporting.tuning import class_plots, told, tuning_rows

SUMMARY_NAME = "summary.json"
REPORT_NAME = "report.html"
UNKNOWN = "not measured"


class Headline(NamedTuple):
    """One of the figures that the page begins with."""

    title: str
    value: str
    note: str
    css: str = ""


def write_report(summary: RunSummary, tables: Mapping[str, pa.Table], folder: str | Path) -> Path:
    """Write ``summary.json`` and ``report.html`` into ``folder`` (made if absent) and return the page's path.

    Args:
        summary: the run's figures.
        tables: the plots' tables, see :func:`warmup_tasks.reporting.tables.report_tables`; what is absent is said so.
        folder: local folder; files of an earlier report are replaced.
    """
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    (target / SUMMARY_NAME).write_text(summary.model_dump_json(indent=2) + "\n", encoding="utf-8")
    page = target / REPORT_NAME
    page.write_text(render(summary, tables), encoding="utf-8")
    return page


def render(summary: RunSummary, tables: Mapping[str, pa.Table]) -> str:
    """Return the page as text."""
    return (
        _environment()
        .get_template("report.html.j2")
        .render(
            summary=summary,
            verdict=verdict(summary),
            headlines=headlines(summary),
            coverage=coverage_lines(summary),
            plots=all_plots(summary, tables),
            reasons=reason_rows(summary),
            parameters=parameter_rows(summary.parameters, summary.parameter_origins),
            **_tuning_parts(summary.tuning, tables),
        )
    )


def write_tuning(tuning: Tuning, tables: Mapping[str, pa.Table], page: str | Path) -> Path:
    """Write a page about a tuning alone, without a run around it, and return its path; folders are made."""
    path = Path(page)
    path.parent.mkdir(parents=True, exist_ok=True)
    template = _environment().get_template("tuning.html.j2")
    path.write_text(template.render(**_tuning_parts(tuning, tables)), encoding="utf-8")
    return path


def _tuning_parts(tuning: Tuning, tables: Mapping[str, pa.Table]) -> dict[str, Any]:
    return {"told": told(tuning), "classes": tuning_rows(tuning), "class_plots": class_plots(tuning, tables)}


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("warmup_tasks.reporting"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = lambda value: "–" if value is None else number(value)
    environment.filters["percent"] = lambda value: "–" if value is None else f"{value:.0%}"
    return environment


def verdict(summary: RunSummary) -> Headline:
    """Return the one sentence that an operator reads first, with good, fair, poor or unknown as its class."""
    planned, ready = summary.items.planned, summary.items.ready
    if planned is None:
        return Headline("Nothing was planned yet", "", "The run stopped before its plan.", "unknown")
    if summary.held_back is not None:
        return Headline(f"{planned:,} items planned, none warmed", "", _why_held_back(summary), "fair")
    if ready is None:
        return Headline("Nothing is published", "", "The run stopped before publication; older marks stand.", "poor")
    if summary.publication.is_published is False:
        return Headline("Nothing new is published", "", _why_unpublished(summary), "poor")
    if planned == 0:
        return Headline("Nothing worth warming was found", "", "See the reasons below.", "fair")
    share = ready / planned
    css = "good" if share >= 0.9 else "fair" if share >= 0.5 else "poor"
    return Headline(f"{ready:,} of {planned:,} planned items are ready", f"{share:.0%}", _faster(summary), css)


def _why_held_back(summary: RunSummary) -> str:
    tokens = sum(place.prefill_tokens for place in summary.cost)
    size = sum(place.redis_bytes for place in summary.cost)
    cost = f"{tokens:,} tokens to prefill, {size / 1e6:,.1f} MB in Redis"
    lasts = "" if summary.ready_in_s is None else f", ready after about {_minutes(summary.ready_in_s)}"
    return f"{summary.held_back.capitalize() if summary.held_back else ''}. It would cost {cost}{lasts}."


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _why_unpublished(summary: RunSummary) -> str:
    broken, share = summary.publication.broken_expectations, summary.publication.failure_share
    said = [f"{share:.0%} of the items failed"] if share is not None else []
    said += [f"broken: {', '.join(broken)}"] if broken else []
    return f"{'; '.join(said).capitalize()}. Only older marks that are still true stand."


def _faster(summary: RunSummary) -> str:
    cold, warm = summary.ttft_ms.cold.p50, summary.ttft_ms.warm.p50
    if not cold or not warm:
        return "The gain was not measured in this run."
    if warm < cold:
        return f"Warm requests answer {cold / warm:.1f} times sooner than cold ones (median, same prompts)."
    return "Warm requests are not faster than cold ones: see the gains by stratum."


def headlines(summary: RunSummary) -> list[Headline]:
    """Return the headline figures in the order of the page."""
    ttft, blocks, prefill = summary.ttft_ms, summary.block_hit_ratio, summary.prefill_tokens
    return [
        Headline(
            "TTFT, median", _change(ttft.cold.p50, ttft.warm.p50, "ms"),
            f"p95 {_change(ttft.cold.p95, ttft.warm.p95, 'ms')} · n = {ttft.warm.n} pairs", "ttft",
        ),
        Headline(
            "Block hit ratio", _change(blocks.cold, blocks.warm, "%"),
            _replayed(blocks), "hits",
        ),
        Headline(
            "Requests read", _told(summary.requests_read),
            f"{_told(summary.requests_usable)} usable · {_told(summary.rows_quarantined)} quarantined",
        ),
        Headline(
            "Prefill spent", f"{_told(prefill.warming)} tokens",
            f"{_told(prefill.unique)} unique · {_told(prefill.validation)} more on validation",
        ),
    ]  # fmt: skip


def coverage_lines(summary: RunSummary) -> list[str]:
    """Return one sentence a model that several replicas serve: how many are ready, and how many items on how many."""
    return [
        f"{model}: {found.ready} of {found.replicas} replicas are ready; items on "
        + ", ".join(f"{places}: {n:,}" for places, n in found.items.items())
        for model, found in (summary.publication.coverage or {}).items()
        if found.replicas > 1
    ]


def _replayed(blocks: HitRatio) -> str:
    if not blocks.n:
        return "replay is off: set measure_window_s"
    failed = f" · {blocks.failed_cold} fail cold, {blocks.failed_warm} warm" if blocks.failed_cold else ""
    return f"n = {blocks.n} replayed requests{failed}"


def _told(value: float | None) -> str:
    return UNKNOWN if value is None else number(value)


def _change(cold: float | None, warm: float | None, unit: str) -> str:
    if cold is None and warm is None:
        return UNKNOWN
    if unit == "%":
        before, after = ("–" if value is None else f"{value:.0%}" for value in (cold, warm))
        return f"{before} → {after}"
    before, after = ("–" if value is None else number(value) for value in (cold, warm))
    return f"{before} → {after} {unit}"


def reason_rows(summary: RunSummary) -> list[dict[str, str]]:
    """Return the reasons table, most items first: reason, step, n_items, kinds, advice; one row a reason and step."""
    grouped: dict[tuple[str, str], list[ReasonCount]] = {}
    for found in summary.reasons:
        grouped.setdefault((found.reason, found.step), []).append(found)
    made = []
    for (reason, step), parts in sorted(grouped.items(), key=lambda entry: -sum(p.n_items for p in entry[1])):
        kinds = ", ".join(f"{part.kind.replace('_', ' ')} {part.n_items:,}" for part in parts)
        total = sum(part.n_items for part in parts)
        made.append(
            {"reason": reason, "step": step, "n_items": f"{total:,}", "kinds": kinds, "advice": parts[0].advice}
        )
    return made


def parameter_rows(values: Mapping[str, Any], origins: Mapping[str, str] | None = None) -> list[dict[str, str]]:
    """Return the parameters table from the model's own metadata.

    Its columns: name, value, origin, unit, range, sensitivity, retune, doc.
    """
    properties = GoldenParameters.model_json_schema()["properties"]
    found = []
    for name, field in GoldenParameters.model_fields.items():
        extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
        value, default = values.get(name), GoldenParameters.model_json_schema()["properties"][name].get("default")
        found.append(
            {
                "name": name,
                "value": "block size" if value is None else _plain(value),
                "is_default": "" if value == default else "changed",
                "origin": (origins or {}).get(name, ""),
                "range": value_range(properties[name]),
                "unit": str(extra.get("unit", "")),
                "sensitivity": str(extra.get("sensitivity", "")),
                "retune": str(extra.get("retune", "")),
                "doc": field.description or "",
            }
        )
    return found


def value_range(schema: Mapping[str, Any]) -> str:
    """Return what a parameter takes, from its JSON schema: ``5–604,800``, or the names of an enumeration."""
    options = schema.get("anyOf", [schema])
    for option in options:
        if "minimum" in option and "maximum" in option:
            return f"{_plain(option['minimum'])}–{_plain(option['maximum'])}"
    names = GoldenParameters.model_json_schema().get("$defs", {})
    for option in options:
        enumeration = names.get(str(option.get("$ref", "")).rsplit("/", 1)[-1], option).get("enum")
        if enumeration:
            return ", ".join(enumeration)
    return ""


def _plain(value: object) -> str:
    return f"{value:,.10g}" if isinstance(value, int | float) else str(value)
