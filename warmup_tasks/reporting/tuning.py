"""What a run's tuning came to, for report and console: typed figures, table rows, and each class's plots."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from warmup_tasks.reporting import tuning_plots
from warmup_tasks.reporting.model import TunedClass, Tuning
from warmup_tasks.reporting.svg import number
from warmup_tasks.tuning.objective import FALSE_SHARE_CAP

Row = Mapping[str, Any]

MOST_DRAWN = 4
"""Classes whose plots are drawn, those with most requests; the table has all."""
OFF = Tuning(state="off")
UNFINISHED = Tuning(state="unfinished")


class ClassPlots(NamedTuple):
    """One class's drawings by name, an empty string where there are no figures; and its parameters, last and best."""

    traffic_class: str
    verdict: str
    plots: dict[str, str]
    parameters: list[dict[str, str]]


def tuning_of(account: Mapping[str, Any]) -> Tuning:
    """Return the figures of an account, as ``tuning_nights/<run>`` holds it; classes by requests."""
    classes = [_class(name, facts) for name, facts in account["classes"].items()]
    ordered = sorted(classes, key=lambda one: (-one.requests, one.traffic_class))
    return Tuning(state="done", problem=account["problem"], classes=ordered)


def _class(name: str, facts: Mapping[str, Any]) -> TunedClass:
    later = facts.get("later", {})
    tried, last = later.get("best", {}), later.get("last", {})
    return TunedClass(
        traffic_class=name,
        verdict=facts["verdict"],
        problem=facts.get("problem"),
        requests=facts["requests"],
        trials=sum(facts.get("trials", {}).values()),
        objective_last=last.get("objective"),
        objective_best=tried.get("objective"),
        p95_ms_last=last.get("p95_ms"),
        p95_ms_best=tried.get("p95_ms"),
        false_share_last=last.get("false_share"),
        false_share_best=tried.get("false_share"),
        recall_last=last.get("recall"),
        recall_best=tried.get("recall"),
        tuned_p95_ms_fixed=facts.get("fixed", {}).get("p95_ms"),
        tuned_false_share_fixed=facts.get("fixed", {}).get("false_share"),
        suits_plan=facts["suits_plan"],
        last=facts["last"],
        values=facts["values"],
        best=facts.get("best"),
        total_effects=facts.get("total_effects", {}),
    )


def told(tuning: Tuning) -> str:
    """Return in one sentence what became of the tuning."""
    if tuning.state == "off":
        return "Tuning was off in this run (tuning_time_s is 0, or a dry run)."
    if tuning.state == "unfinished":
        return "Tuning did not finish, so the last values stay: its task was stopped, or has not ended yet."
    if tuning.problem is not None:
        return f"Nothing could be tuned, so the last values stay: {tuning.problem}."
    if not tuning.classes:
        return "No request of a served model lies in the history, so there was nothing to tune on."
    new = sum(one.values != one.last for one in tuning.classes)
    if not new:
        return "The last values stay, for every traffic class."
    return f"{new} of {len(tuning.classes)} traffic classes have new values; runs after this one take them."


def tuning_rows(tuning: Tuning) -> list[dict[str, str]]:
    """Return the table of classes: class, verdict, requests, trials, objective, p95, false_share, recall."""
    return [
        {
            "traffic_class": one.traffic_class,
            "verdict": one.verdict + (f" ({one.problem})" if one.problem else ""),
            "requests": f"{one.requests:,}",
            "trials": f"{one.trials:,}" if one.trials else "–",
            "objective": _change(one.objective_last, one.objective_best, ".3f"),
            "p95": _change(one.p95_ms_last, one.p95_ms_best, ",.0f", " ms"),
            "false_share": _change(one.false_share_last, one.false_share_best, ".0%"),
            "recall": _change(one.recall_last, one.recall_best, ".0%"),
        }
        for one in tuning.classes
    ]


def value_rows(one: TunedClass) -> list[dict[str, str]]:
    """Return a class's parameters, what mattered most first: name, last, best, effect, css."""
    best, effects = one.best or {}, one.total_effects
    return [
        {
            "name": name,
            "last": plain(one.last[name]),
            "best": plain(best[name]) if name in best else "–",
            "effect": f"{effects[name]:.0%}" if name in effects else "–",
            "css": "changed" if best.get(name, one.last[name]) != one.last[name] else "",
        }
        for name in sorted(one.last, key=lambda name: -effects.get(name, 0.0))
    ]


def plain(value: object) -> str:
    """Return a parameter's value as people read it."""
    return number(value) if isinstance(value, int | float) else str(value)


def _change(last: float | None, best: float | None, form: str, unit: str = "") -> str:
    if last is None and best is None:
        return "–"
    before, after = ("–" if value is None else format(value, form) for value in (last, best))
    return f"{before} → {after}{unit}"


def class_plots(tuning: Tuning, tables: Mapping[str, pa.Table]) -> list[ClassPlots]:
    """Return the plots of the classes with most requests among those that were tried.

    Args:
        tuning: the figures.
        tables: ``tuning_trials`` and ``tuning_curves``, the tables of ``tuning_nights/<run>``; absent: no plots.
    """
    trials, curves = (_by_class(tables.get(name)) for name in ("tuning_trials", "tuning_curves"))
    drawn = [one for one in tuning.classes if one.traffic_class in trials][:MOST_DRAWN]
    return [
        ClassPlots(
            one.traffic_class,
            one.verdict,
            {
                "effects": tuning_plots.effects(one.total_effects),
                "history": tuning_plots.history(trials[one.traffic_class]),
                "frontier": tuning_plots.frontier(
                    trials[one.traffic_class], _marks(one, trials[one.traffic_class]), FALSE_SHARE_CAP
                ),
                "curves": tuning_plots.curves(
                    sorted(curves.get(one.traffic_class, []), key=lambda row: -one.total_effects[row["parameter"]]),
                    one.best or {},
                    one.last,
                ),
            },
            value_rows(one),
        )
        for one in drawn
    ]


def _marks(one: TunedClass, trials: Sequence[Row]) -> dict[str, Row]:
    """Return the settings to point out: the fixed threshold and the best trial."""
    marks: dict[str, Row] = {}
    if one.tuned_p95_ms_fixed is not None:
        marks["fixed"] = {"p95_ms": one.tuned_p95_ms_fixed, "false_share": one.tuned_false_share_fixed}
    kept = [trial for trial in trials if trial["is_feasible"] and trial["value"] is not None]
    if kept:
        marks["best"] = json.loads(min(kept, key=lambda trial: (trial["value"], trial["number"]))["facts"])
    return marks


def _by_class(table: pa.Table | None) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in table.to_pylist() if table is not None else []:
        found.setdefault(row["traffic_class"], []).append(row)
    return found
