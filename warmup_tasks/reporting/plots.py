"""The report's plots: from figures of the summary or one table to an inline SVG. No reading, no arithmetic of runs.

A plot whose figures were not measured is an empty string; the page says so in its place.
"""

from collections.abc import Mapping
from datetime import timedelta

import pyarrow as pa

from warmup_tasks.demand.heat import BUCKETS
from warmup_tasks.reporting import svg
from warmup_tasks.reporting.model import ItemCounts, RunSummary
from warmup_tasks.reporting.tables import HEAT_SLOT_S, HEAT_SLOTS

WIDTH = 560
OUTCOMES = ("ready", "unverified", "rejected", "skipped", "unaccounted")
ARMS = ("cold", "warm")
HEAT_LEVELS = 6


def ttft(table: pa.Table | None, summary: RunSummary) -> str:
    """Draw the share of sampled items answered within x ms, cold and warm."""
    if table is None or not table.num_rows:
        return ""
    values = {arm: sorted(table[f"{arm}_ms"].to_pylist()) for arm in ARMS}
    low = max(min(values["cold"][0], values["warm"][0]), 0.1)
    high = max(values["cold"][-1], values["warm"][-1])
    is_log = high / low > 20
    start = low if is_log else 0.0
    x = svg.Scale(start, high * 1.03, 46, WIDTH - 16, is_log=is_log)
    y = svg.Scale(0, 1, 214, 18)
    ticks = svg.log_ticks(start, high * 1.03) if is_log else svg.nice_ticks(0, high * 1.03)
    parts = [svg.x_axis(x, 214, 18, ticks, "ms")]
    for share in (0, 0.5, 0.95):
        parts.append(svg.line(46, y(share), WIDTH - 16, y(share), "grid"))
        parts.append(svg.text(40, y(share) + 4, f"{share:.0%}", "tick", "end"))
    for arm in ARMS:
        points = [(x(start), y(0))]
        for rank, value in enumerate(values[arm], 1):
            points += [(x(value), points[-1][1]), (x(value), y(rank / len(values[arm])))]
        points.append((x(high * 1.03), y(1)))
        parts.append(svg.path(points, f"curve {arm}"))
    marks = sorted((getattr(summary.ttft_ms, arm).p50, arm) for arm in ARMS)
    for place, (p50, arm) in enumerate(marks):
        parts.append(svg.dot(x(p50), y(0.5), 4.5, f"mark {arm}", f"{arm} p50 {p50:.1f} ms"))
        anchor, shift = ("end", -9) if place == 0 and x(p50) > 170 else ("start", 9)
        parts.append(
            svg.text(
                x(p50) + shift, y(0.5) + (16 if place else -7), f"{arm} {svg.number(p50)} ms", f"value {arm}", anchor
            )
        )
    return svg.figure(WIDTH, 238, "Time to first token, cold against warm, cumulative share", parts)


def hits(table: pa.Table | None) -> str:
    """Draw the block hit ratio of each minute after as_of, cold and warm side by side."""
    if table is None or not table.num_rows:
        return ""
    cells = {(row["minute"], row["arm"]): row for row in table.to_pylist() if row["full_blocks"]}
    minutes = sorted({minute for minute, _ in cells})
    if not minutes:
        return ""
    y = svg.Scale(0, 1, 206, 18)
    slot = (WIDTH - 62) / len(minutes)
    width = min(slot * 0.36, 46)
    parts = []
    for share in (0, 0.25, 0.5, 0.75, 1):
        parts += [svg.line(46, y(share), WIDTH - 16, y(share), "grid")]
        parts += [svg.text(40, y(share) + 4, f"{share:.0%}", "tick", "end")]
    for place, minute in enumerate(minutes):
        middle = 46 + (place + 0.5) * slot
        for arm, left in (("cold", middle - width - 1), ("warm", middle + 1)):
            cell = cells.get((minute, arm))
            if cell is None:
                continue
            share = cell["hit_blocks"] / cell["full_blocks"]
            title = f"{arm}: {share:.1%} of {cell['full_blocks']} blocks, {cell['n_requests']} requests"
            parts.append(svg.rect(left, y(share), width, max(206 - y(share), 1), f"fill {arm}", title))
            if width >= 30:
                parts.append(svg.text(left + width / 2, y(share) - 4, f"{share:.0%}", "tick", "middle"))
        parts.append(svg.text(middle, 224, f"minute {minute + 1}" if slot > 60 else f"{minute + 1}", "tick", "middle"))
    return svg.figure(WIDTH, 234, "Block hit ratio by minute, cold against warm", parts)


def heat(table: pa.Table | None, summary: RunSummary) -> str:
    """Draw the requests of the last day: 64 buckets by quarter hours, darker is more (square-root steps)."""
    if table is None or not table.num_rows:
        return ""
    wide, left, top, cell_w, cell_h = 1160, 46, 8, 11.3, 4
    cells = table.to_pylist()
    peak = max(row["n_requests"] for row in cells)
    levels: dict[int, list[str]] = {level: [] for level in range(1, HEAT_LEVELS + 1)}
    for row in cells:
        level = max(1, round((row["n_requests"] / peak) ** 0.5 * HEAT_LEVELS))
        at = f"M{left + row['slot'] * cell_w:g} {top + row['bucket'] * cell_h:g}"
        levels[level].append(f"{at}h{cell_w - 0.6:g}v{cell_h - 0.6:g}h{0.6 - cell_w:g}z")
    bottom = top + BUCKETS * cell_h
    parts = [svg.rect(left, top, HEAT_SLOTS * cell_w, BUCKETS * cell_h, "ground")]
    parts += [f'<path d="{"".join(drawn)}" class="heat{level}"/>' for level, drawn in levels.items() if drawn]
    for slot in range(0, HEAT_SLOTS + 1, 12):
        moment = summary.as_of - timedelta(seconds=(HEAT_SLOTS - slot) * HEAT_SLOT_S)
        parts.append(svg.text(left + slot * cell_w, bottom + 16, f"{moment:%H:%M}", "tick", "middle"))
    for bucket in (0, 16, 32, 48, 63):
        parts.append(svg.text(left - 8, top + bucket * cell_h + 6, str(bucket), "tick", "end"))
    parts.append(svg.text(left + HEAT_SLOTS * cell_w, bottom + 34, f"peak: {peak} requests in a cell", "tick", "end"))
    parts.append(svg.text(left, bottom + 34, "UTC, each cell 15 minutes of one bucket", "tick"))
    return svg.figure(wide, bottom + 42, "Heat map of the last day", parts)


def capacity(summary: RunSummary) -> str:
    """Draw each replica's capacity in tokens with what was planned and what is ready in it."""
    known = [replica for replica in summary.replicas if replica.planned_tokens is not None]
    if not known:
        return ""
    x = svg.Scale(0, max(replica.capacity_tokens for replica in known), 0, WIDTH - 8)
    parts = []
    for place, replica in enumerate(known):
        top = place * 58
        planned, ready = replica.planned_tokens or 0, replica.ready_tokens
        parts.append(svg.text(0, top + 14, replica.name, "name"))
        room = f"{replica.capacity_tokens:,} tokens"
        said = room if ready is None else f"{number_share(ready, replica.capacity_tokens)} of {room} ready"
        parts.append(svg.text(WIDTH - 8, top + 14, said, "tick", "end"))
        parts.append(svg.rect(0, top + 22, x(replica.capacity_tokens), 20, "ground", "capacity"))
        parts.append(svg.rect(0, top + 22, x(planned), 20, "fill planned", f"planned: {planned:,} tokens"))
        if replica.budget_tokens is not None:
            edge = x(replica.budget_tokens)
            parts.append(svg.line(edge, top + 19, edge, top + 45, "axis"))
        if ready is not None:
            parts.append(svg.rect(0, top + 22, x(ready), 20, "fill ready", f"ready: {ready:,} tokens"))
    return svg.figure(WIDTH, len(known) * 58 - 10, "Capacity use by replica", parts)


def outcomes(summary: RunSummary) -> str:
    """Draw the planned items of each kind by what became of them."""
    kinds = {kind: counts for kind, counts in summary.items.by_kind.items() if counts.planned}
    if not kinds:
        return ""
    parts = []
    for place, (kind, counts) in enumerate(kinds.items()):
        top = place * 50
        parts.append(svg.text(0, top + 14, kind.replace("_", " "), "name"))
        parts.append(svg.text(WIDTH - 8, top + 14, _counted(counts), "tick", "end"))
        parts.append(svg.rect(0, top + 22, WIDTH - 8, 14, "ground"))
        left = 0.0
        for outcome in OUTCOMES:
            width = (WIDTH - 8) * (getattr(counts, outcome) or 0) / (counts.planned or 1)
            title = f"{outcome}: {getattr(counts, outcome)}"
            parts.append(svg.rect(left, top + 22, width, 14, f"fill {outcome}", title, radius=1))
            left += width
    return svg.figure(WIDTH, len(kinds) * 50 - 10, "Items by kind and outcome", parts)


def _counted(counts: ItemCounts) -> str:
    said = [f"{getattr(counts, outcome):,} {outcome}" for outcome in OUTCOMES if getattr(counts, outcome)]
    return f"{' · '.join(said) or 'nothing carried out'} of {counts.planned:,}"


def gains(summary: RunSummary, most: int = 10) -> str:
    """Draw the measured gain of each stratum with its interval; a failed stratum is drawn as such."""
    shown = sorted((g for g in summary.gains if g.gain_ms is not None), key=lambda gain: -gain.items)[:most]
    if not shown:
        return ""
    values = [v for g in shown for v in (g.gain_low_ms, g.gain_high_ms, g.gain_ms, 0.0) if v is not None]
    low, high = min(values), max(values)
    pad = (high - low or 1) * 0.04
    x = svg.Scale(low - (pad if low < 0 else 0), high + pad, 8, WIDTH - 16)
    bottom = len(shown) * 44 + 4
    parts = [svg.x_axis(x, bottom, 2, svg.nice_ticks(x.low, x.high), "ms"), svg.line(x(0), 2, x(0), bottom, "axis")]
    for place, gain in enumerate(shown):
        y, css = place * 44 + 32, "failed" if gain.reason else ""
        parts.append(svg.text(8, y - 14, gain.stratum, "name"))
        told = f"{gain.pairs} measured, {gain.inferred} inferred of {gain.items}"
        parts.append(svg.text(WIDTH - 16, y - 14, told, "tick", "end"))
        if gain.gain_low_ms is not None and gain.gain_high_ms is not None:
            parts.append(svg.line(x(gain.gain_low_ms), y, x(gain.gain_high_ms), y, f"interval {css}"))
        title = f"{gain.gain_ms:.1f} ms {gain.reason}"
        parts.append(svg.dot(x(gain.gain_ms or 0.0), y, 5, f"mark gain {css}", title))
    return svg.figure(WIDTH, bottom + 24, "Gain by stratum with intervals", parts)


def stages(stages_s: Mapping[str, float] | None) -> str:
    """Draw the seconds of each stage, one after the other."""
    if not stages_s:
        return ""
    total = sum(stages_s.values())
    x = svg.Scale(0, total or 1, 150, WIDTH - 64)
    parts, begun = [], 0.0
    for place, (stage, seconds) in enumerate(stages_s.items()):
        top = place * 24
        parts.append(svg.text(140, top + 13, stage.replace("_", " "), "name", "end"))
        left, right = x(begun), x(begun + seconds)
        parts.append(svg.rect(left, top + 2, max(right - left, 1.5), 14, "fill stage", f"{stage}: {seconds:.2f} s"))
        parts.append(svg.text(right + 6, top + 13, f"{seconds:.1f} s", "tick"))
        begun += seconds
    return svg.figure(WIDTH, len(stages_s) * 24, f"Stages, {total:.1f} s together", parts)


def number_share(part: int, whole: int) -> str:
    """Return a share in whole per cent, or a dash where the whole is 0."""
    return f"{part / whole:.0%}" if whole else "–"


def all_plots(summary: RunSummary, tables: Mapping[str, pa.Table]) -> dict[str, str]:
    """Return every plot by name; an empty string where nothing was measured."""
    return {
        "ttft": ttft(tables.get("ttft_pairs"), summary),
        "hits": hits(tables.get("hits_by_minute")),
        "heat": heat(tables.get("heat_map"), summary),
        "capacity": capacity(summary),
        "outcomes": outcomes(summary),
        "gains": gains(summary),
        "stages": stages(summary.stages_s),
    }
