"""The plots of one traffic class's tuning: what mattered, how, and what was tried. From figures to inline SVG alone.

As everywhere in this room, a plot without figures is an empty string.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from warmup_tasks.reporting import svg

Row = Mapping[str, Any]

WIDTH, WIDE = 560, 1160
PANEL_WIDTH, PANEL_HEIGHT, PANELS_A_LINE = 280, 168, 4
LOG_FROM_RATIO = 50
KEPT_SHARE = 0.9
"""Of the trials, by objective, that set the scale: a few terrible ones would press all others into a line."""


class Point(NamedTuple):
    """A trial where it is drawn."""

    x: float
    y: float
    is_feasible: bool
    told: str


def effects(found: Mapping[str, float]) -> str:
    """Draw the total effect of each parameter: the share of the objective's variance that vanishes when it is held."""
    if not found:
        return ""
    ordered = sorted(found.items(), key=lambda effect: -effect[1])
    x = svg.Scale(0, max(1.0, ordered[0][1]), 170, WIDTH - 60)
    parts = []
    for place, (name, effect) in enumerate(ordered):
        top = place * 26
        parts.append(svg.text(160, top + 15, name, "name", "end"))
        parts.append(svg.rect(170, top + 3, x(x.high) - 170, 16, "ground"))
        parts.append(svg.rect(170, top + 3, x(effect) - 170, 16, "fill stage", f"{name}: {effect:.1%}"))
        parts.append(svg.text(x(x.high) + 8, top + 15, f"{effect:.0%}", "tick"))
    return svg.figure(WIDTH, len(ordered) * 26, "Total effect of each parameter on the objective", parts)


def curves(rows: Sequence[Row], chosen: Mapping[str, Any], last: Mapping[str, Any]) -> str:
    """Draw the predicted objective over each parameter, with its deviation, and where the last and the best value lie.

    Args:
        rows: ``parameter``, ``value`` (JSON), ``objective``, ``deviation``.
        chosen: the best trial's values.
        last: those before.
    """
    if not rows:
        return ""
    by_name: dict[str, list[Row]] = {}
    for row in rows:
        by_name.setdefault(row["parameter"], []).append(row)
    low = min(row["objective"] - row["deviation"] for row in rows)
    high = max(row["objective"] + row["deviation"] for row in rows)
    parts = []
    for place, (name, points) in enumerate(by_name.items()):
        left = (place % PANELS_A_LINE) * (PANEL_WIDTH + 13)
        top = (place // PANELS_A_LINE) * PANEL_HEIGHT
        y = svg.Scale(low, high, top + PANEL_HEIGHT - 40, top + 26)
        parts.append(svg.text(left + 34, top + 14, name, "name"))
        for tick in svg.nice_ticks(low, high, 3):
            parts.append(svg.line(left + 34, y(tick), left + PANEL_WIDTH - 8, y(tick), "grid"))
            parts.append(svg.text(left + 28, y(tick) + 4, svg.number(tick), "tick", "end"))
        parts += _panel(points, left, y, chosen.get(name), last.get(name))
    lines = -(-len(by_name) // PANELS_A_LINE)
    return svg.figure(WIDE, lines * PANEL_HEIGHT, "Predicted objective over each parameter", parts)


def _panel(points: Sequence[Row], left: float, y: svg.Scale, chosen: Any, last: Any) -> list[str]:
    values = [json.loads(row["value"]) for row in points]
    start, end, base = left + 34, left + PANEL_WIDTH - 8, y.start
    if any(isinstance(value, str) for value in values):
        step = (end - start) / len(values)
        places = {value: start + (number + 0.5) * step for number, value in enumerate(values)}
        parts = [svg.text(at, base + 16, value, "tick", "middle") for value, at in places.items()]
        for row, at in zip(points, places.values(), strict=True):
            reach = row["deviation"]
            parts.append(svg.line(at, y(row["objective"] - reach), at, y(row["objective"] + reach), "spread"))
            parts.append(svg.dot(at, y(row["objective"]), 4.5, "mark stage", _told(row)))
        return parts + _values(places.get(last), places.get(chosen), y)
    low, high = values[0], values[-1]
    x = svg.Scale(low, high, start, end, is_log=low > 0 and high / low >= LOG_FROM_RATIO)
    middle = [(x(value), row) for value, row in zip(values, points, strict=True)]
    above = [(at, y(row["objective"] + row["deviation"])) for at, row in middle]
    below = [(at, y(row["objective"] - row["deviation"])) for at, row in middle]
    parts = [
        svg.path([*above, *reversed(below)], "band"),
        svg.path([(at, y(row["objective"])) for at, row in middle], "curve stage"),
        svg.text(start, base + 16, svg.number(low), "tick"),
        svg.text(end, base + 16, svg.number(high), "tick", "end"),
    ]
    return parts + _values(None if last is None else x(last), None if chosen is None else x(chosen), y)


def _values(last: float | None, chosen: float | None, y: svg.Scale) -> list[str]:
    marks = [(last, "before"), (chosen, "chosen")]
    return [svg.line(at, y.end, at, y.start, css) for at, css in marks if at is not None]


def _told(row: Row) -> str:
    return f"{json.loads(row['value'])}: {row['objective']:.3f} ± {row['deviation']:.3f}"


def history(trials: Sequence[Row]) -> str:
    """Draw each trial's objective in order, and the best so far among those that keep the constraints."""
    points = [
        Point(trial["number"], trial["value"], trial["is_feasible"], f"trial {trial['number']}: {trial['value']:.3f}")
        for trial in trials
        if trial["value"] is not None
    ]
    if not points:
        return ""
    low, high = _range([point.y for point in points])
    x = svg.Scale(0, max(1, points[-1].x), 46, WIDTH - 16)
    y = svg.Scale(low, high, 206, 14)
    parts = _axes(x, y, svg.nice_ticks(x.low, x.high), "")
    parts.append(svg.text(WIDTH - 16, 238, "trial", "tick", "end"))
    best: list[tuple[float, float]] = []
    for point in points:
        if point.is_feasible:
            reached = min(point.y, best[-1][1]) if best else point.y
            best += [(point.x, best[-1][1] if best else reached), (point.x, reached)]
    if best:
        best.append((points[-1].x, best[-1][1]))
        parts.append(svg.path([(x(number), y(value)) for number, value in best], "curve ready"))
    return svg.figure(WIDTH, 244, "Objective of each trial in order", parts + _dots(points, x, y))


def frontier(trials: Sequence[Row], marks: Mapping[str, Row], cap: float) -> str:
    """Draw what a low P95 costs in false triggers: each trial by its false share and P95, and the frontier below.

    Args:
        trials: with ``facts`` (JSON).
        marks: name → facts of settings to point out, such as the fixed threshold.
        cap: the most false triggers that are allowed, as a share.
    """
    points = [
        Point(facts["false_share"] or 0.0, facts["p95_ms"], trial["is_feasible"], _facts_told(trial, facts))
        for trial in trials
        if (facts := json.loads(trial["facts"])).get("p95_ms") is not None
    ]
    if not points:
        return ""
    shown = [(name, facts["false_share"] or 0.0, facts["p95_ms"]) for name, facts in marks.items() if facts]
    low, high = _range([point.y for point in points] + [p95_ms for _, _, p95_ms in shown])
    x = svg.Scale(0, max(4 * cap, *(point.x for point in points), *(share for _, share, _ in shown)), 46, WIDTH - 16)
    y = svg.Scale(low, high, 206, 14)
    parts = _axes(x, y, [], "ms")
    for tick in svg.nice_ticks(0, x.high):
        parts.append(svg.text(x(tick), 222, f"{tick:.0%}", "tick", "middle"))
    parts.append(svg.text(WIDTH - 16, 238, "false triggers", "tick", "end"))
    parts.append(svg.line(x(cap), y.end, x(cap), y.start, "before"))
    parts.append(svg.text(x(cap) + 5, y.end + 8, f"cap {cap:.1%}", "tick"))
    least: list[tuple[float, float]] = []
    for point in sorted(points, key=lambda one: (one.x, one.y)):
        if not least or point.y < least[-1][1]:
            least += [(point.x, least[-1][1])] if least else []
            least.append((point.x, point.y))
    least.append((x.high, least[-1][1]))
    parts.append(svg.path([(x(share), y(p95_ms)) for share, p95_ms in least], "curve ready"))
    parts += _dots(points, x, y)
    are_close = len({round(y(p95_ms) / 16) for _, _, p95_ms in shown}) < len(shown)
    for place, (name, share, p95_ms) in enumerate(shown):
        css = "cold" if name == "fixed" else "warm"
        below = 18 if are_close and place else 4 - 12 * are_close
        parts.append(svg.dot(x(share), y(p95_ms), 5.5, f"mark {css}", f"{name}: {p95_ms:.0f} ms"))
        said, is_right = f"{name} {svg.number(p95_ms)} ms", x(share) > WIDTH - 120
        shift, anchor = (-9, "end") if is_right else (9, "start")
        parts.append(svg.text(x(share) + shift, y(p95_ms) + below, said, f"value {css}", anchor))
    return svg.figure(WIDTH, 244, "False triggers against P95, each trial a dot", parts)


def _axes(x: svg.Scale, y: svg.Scale, ticks: Sequence[float], unit: str) -> list[str]:
    parts = [svg.text(x(tick), 222, svg.number(tick), "tick", "middle") for tick in ticks]
    found = svg.nice_ticks(y.low, y.high, 4)
    for tick in found:
        parts.append(svg.line(x.start, y(tick), x.end, y(tick), "grid"))
        shown = f"{svg.number(tick)} {unit}".rstrip() if tick == found[-1] else svg.number(tick)
        parts.append(svg.text(x.start - 6, y(tick) + 4, shown, "tick", "end"))
    return parts


def _dots(points: Sequence[Point], x: svg.Scale, y: svg.Scale) -> list[str]:
    return [
        svg.dot(x(point.x), y(point.y), 3.5, "trial" if point.is_feasible else "trial broken", point.told)
        for point in points
    ]


def _range(values: Sequence[float]) -> tuple[float, float]:
    ordered = sorted(values)
    low, high = ordered[0], ordered[min(len(ordered) - 1, int(KEPT_SHARE * len(ordered)))]
    pad = 0.06 * (high - low or abs(high) or 1.0)
    return low - pad, high + pad


def _facts_told(trial: Row, facts: Row) -> str:
    recall = "no surges" if facts["recall"] is None else f"recall {facts['recall']:.0%}"
    return f"trial {trial['number']}: {facts['p95_ms']:.0f} ms, {facts['firings']} firings, {recall}"
