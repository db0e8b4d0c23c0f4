"""The few SVG pieces that the report's plots are made of: scales, axes, marks. Colours are CSS classes of the page.

Knows pixels and nothing of warm-up. Every text is escaped here.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape


@dataclass(frozen=True, slots=True)
class Scale:
    """A linear or logarithmic scale from values to pixels; values outside are clipped to its ends."""

    low: float
    high: float
    start: float
    end: float
    is_log: bool = False

    def __call__(self, value: float) -> float:
        """Return the pixel of ``value``."""
        if self.high <= self.low:
            return self.start
        value = min(max(value, self.low), self.high)
        if self.is_log:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 1)


def nice_ticks(low: float, high: float, wanted: int = 5) -> list[float]:
    """Return round numbers from ``low`` to ``high``, about ``wanted`` of them."""
    if high <= low:
        return [low]
    raw = (high - low) / max(wanted, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw * 0.999)
    count = math.floor(high / step + 1e-9) - math.ceil(low / step - 1e-9)
    return [round((math.ceil(low / step - 1e-9) + n) * step, 10) for n in range(count + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Return 1, 2 and 5 times the powers of ten between ``low`` and ``high``."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [factor * 10.0**power for power in powers for factor in (1, 2, 5)]
    return [tick for tick in ticks if low <= tick <= high]


def number(value: float) -> str:
    """Return a number as people read it: thousands apart, no needless decimals, three digits that count."""
    if value == 0 or (float(value).is_integer() and abs(value) < 1e6):
        return f"{value:,.0f}"
    if abs(value) >= 1e6:
        return f"{value / 1e6:.3g} M"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def text(x: float, y: float, content: str, css: str = "label", anchor: str = "start") -> str:
    """Return a line of text with its baseline at ``y``."""
    return f'<text x="{x:g}" y="{y:g}" class="{css}" text-anchor="{anchor}">{escape(content)}</text>'


def rect(x: float, y: float, width: float, height: float, css: str, title: str = "", radius: float = 2) -> str:
    """Return a rectangle, with a tool tip where ``title`` is given; one narrower than half a pixel is left out."""
    if width < 0.5:
        return ""
    shape = f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{radius:g}" class="{css}"'
    return f"{shape}><title>{escape(title)}</title></rect>" if title else f"{shape}/>"


def line(x1: float, y1: float, x2: float, y2: float, css: str) -> str:
    """Return a straight line."""
    return f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" class="{css}"/>'


def path(points: Sequence[tuple[float, float]], css: str) -> str:
    """Return an open line through ``points``."""
    return f'<path d="M{"L".join(f"{x:g} {y:g}" for x, y in points)}" class="{css}"/>'


def dot(x: float, y: float, radius: float, css: str, title: str = "") -> str:
    """Return a filled circle."""
    inner = f"<title>{escape(title)}</title>" if title else ""
    return f'<circle cx="{x:g}" cy="{y:g}" r="{radius:g}" class="{css}">{inner}</circle>'


def x_axis(scale: Scale, y: float, top: float, ticks: Sequence[float], unit: str = "") -> str:
    """Return a horizontal axis with grid lines up to ``top``; the unit stands behind the last tick."""
    parts = [line(scale(tick), top, scale(tick), y, "grid") for tick in ticks]
    for tick in ticks:
        shown = f"{number(tick)} {unit}".rstrip() if tick == ticks[-1] else number(tick)
        parts.append(text(scale(tick), y + 16, shown, "tick", "middle"))
    return "".join(parts)


def figure(width: float, height: float, label: str, parts: Sequence[str]) -> str:
    """Return the whole drawing; ``label`` describes it to screen readers."""
    return (
        f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{escape(label, quote=True)}">'
        f"{''.join(parts)}</svg>"
    )
