"""What is known of each node at a moment, from the requests before it alone: one row a node that was asked for.

Everything that depends on the log's later shape stays out: where a run is cut, how long it is, what branches off later.
Places are told in powers of two, at which ``history.py`` cuts every run, so that a later cut changes no value.
"""

import numpy as np

from warmup_tasks.demand.prefix_tree import NO_NODE, Floats, Ints
from warmup_tasks.demand.reuse.history import History, power_of_two

DAY_S = 86_400.0
_FAST, _SLOW = 0.5, 6.0

NAMES = (
    "age_s",
    "first_age_s",
    "uses",
    "uses_fast",
    "uses_slow",
    "sessions",
    "sessions_slow",
    "last_gap_s",
    "mean_gap_s",
    "age_over_mean_gap",
    "requests_since",
    "turn",
    "turn_gap_s",
    "age_over_turn_gap",
    "growth_tokens",
    "prompt_tokens",
    "session_age_s",
    "session_turns",
    "session_gap_s",
    "age_over_session_gap",
    "steps_below_log2",
    "depth_log2",
    "branches",
    "share_of_parent",
    "sibling_age_s",
    "tenant_rate",
    "uses_day_before",
    "uses_week_before",
    "hour",
    "weekday",
)
"""Times in s, lengths in tokens. ``uses_fast`` and ``uses_slow`` decay with half the window and six windows.

``turn`` to ``prompt_tokens`` tell of the last request that passed through, ``session_...`` of all turns of its session
so far, ``steps_below_log2`` how far beyond the node its prompt went. ``branches`` is how many ways are known from where
the requests through the node part. ``tenant_rate`` is that tenant's rate in the last window over its rate so far. The
last four are unknown in logs of less than a day.
"""


def features_at(history: History, moment_s: float, window_s: float) -> tuple[Ints, Floats]:
    """Return the nodes asked for before a moment, and their features then.

    Args:
        history: the log; requests at or after the moment are not looked at.
        moment_s: on the log's clock.
        window_s: for which a prediction is wanted; it sets the scales.

    Returns:
        Node numbers in ascending order, shape (known,), and values, shape (known, len(NAMES)); NaN: unknown.
    """
    visits, turns, times = history.visits, history.turns, history.times_s
    stop = history.requests_before(moment_s)
    seen = slice(0, int(np.searchsorted(visits.request, stop)))
    node, request = visits.node[seen], visits.request[seen]
    size = len(history.parent)
    uses = np.bincount(node, minlength=size).astype(np.float64)
    known = np.flatnonzero(uses)
    age = moment_s - times[request]
    last, before, first = (np.full(size, NO_NODE, np.int64) for _ in range(3))
    last[node], before[node] = request, visits.previous[seen]
    first[node[::-1]] = request[::-1]

    def total(values: Floats) -> Floats:
        return np.bincount(node, values, minlength=size)[known].astype(np.float64)

    fast, slow = np.exp(-age / (_FAST * window_s)), np.exp(-age / (_SLOW * window_s))
    is_new = visits.is_new_session[seen].astype(np.float64)
    parent = history.parent[known]
    is_top = parent == NO_NODE
    last, count = last[known], uses[known]
    last_age, first_age = moment_s - times[last], moment_s - times[first[known]]
    last_gap = np.where(before[known] == NO_NODE, np.nan, times[last] - times[before[known]])
    mean_gap = np.where(count > 1, (first_age - last_age) / np.maximum(1.0, count - 1), np.nan)
    turn_gap, ends = turns.gap_s[last], history.end_tokens[known]
    columns = {
        "age_s": last_age,
        "first_age_s": first_age,
        "uses": count,
        "uses_fast": total(fast),
        "uses_slow": total(slow),
        "sessions": total(is_new),
        "sessions_slow": total(is_new * slow),
        "last_gap_s": last_gap,
        "mean_gap_s": mean_gap,
        "age_over_mean_gap": last_age / np.maximum(mean_gap, 1e-3),
        "requests_since": stop - 1.0 - last,
        "turn": turns.number[last],
        "turn_gap_s": turn_gap,
        "age_over_turn_gap": last_age / np.maximum(turn_gap, 1e-3),
        "growth_tokens": turns.growth_tokens[last],
        "prompt_tokens": history.prompt_tokens[last],
        **_sessions(history, stop, last, moment_s),
        "steps_below_log2": power_of_two((history.prompt_tokens[last] - ends) // history.step_tokens),
        "depth_log2": power_of_two(ends // history.step_tokens),
        "branches": np.bincount(parent[~is_top], minlength=size)[_forks(history, uses)[known]],
        "share_of_parent": np.where(is_top, count / max(1, stop), count / np.maximum(1.0, uses[parent])),
        "sibling_age_s": np.where(is_top, np.nan, _ages(history, last, known, moment_s)[parent]),
        "tenant_rate": _tenant_rates(history, stop, moment_s, window_s)[last],
        **_rhythm(history, node, age, known, moment_s, window_s),
    }
    return known, np.column_stack([columns[name] for name in NAMES]).astype(np.float64)


def uses_between(history: History, since_s: float, until_s: float) -> Floats:
    """Return how often each node is asked for in [since, until), shape (nodes,)."""
    visits = history.visits
    first, stop = np.searchsorted(
        visits.request, [history.requests_before(since_s), history.requests_before(until_s)], side="left"
    )
    return np.bincount(visits.node[first:stop], minlength=len(history.parent)).astype(np.float64)


def _sessions(history: History, stop: int, last: Ints, moment_s: float) -> dict[str, Floats]:
    """Return how the session of each node's last request stands: its newest turn, number of turns, mean gap."""
    session, number, times = history.turns.session[:stop], history.turns.number[:stop], history.times_s
    newest, most = np.zeros(stop, np.int64), np.zeros(stop, np.int64)
    newest[session] = np.arange(stop)
    np.maximum.at(most, session, number)
    own = session[last]
    gap = np.where(most[own] > 0, (times[newest[own]] - times[own]) / np.maximum(1, most[own]), np.nan)
    age = moment_s - times[newest[own]]
    return {
        "session_age_s": age,
        "session_turns": most[own] + 1.0,
        "session_gap_s": gap,
        "age_over_session_gap": age / np.maximum(gap, 1e-3),
    }


def _forks(history: History, uses: Floats) -> Ints:
    """Return the last node on each node's way down that all its requests share, by what is known so far."""
    heir = np.arange(len(history.parent))
    inner = np.flatnonzero((history.parent != NO_NODE) & (uses > 0))
    same = inner[uses[inner] == uses[history.parent[inner]]]
    heir[history.parent[same]] = same
    while not np.array_equal(further := heir[heir], heir):
        heir = further
    return heir


def _ages(history: History, last: Ints, known: Ints, moment_s: float) -> Floats:
    ages = np.full(len(history.parent), np.nan)
    ages[known] = moment_s - history.times_s[last]
    return ages


def _tenant_rates(history: History, stop: int, moment_s: float, window_s: float) -> Floats:
    """Return, by request, its tenant's rate in the last window over its rate so far."""
    if history.tenants is None or stop == 0:
        return np.full(max(1, len(history.leaf)), np.nan)
    tenants, times = history.tenants[:stop], history.times_s[:stop]
    so_far = np.bincount(tenants, minlength=int(history.tenants.max()) + 1)
    recent = np.bincount(tenants[times >= moment_s - window_s], minlength=len(so_far))
    span = max(window_s, moment_s - times[0])
    rates = (recent / window_s) / np.maximum(so_far / span, 1e-12)
    each: Floats = rates[history.tenants].astype(np.float64)
    return each


def _rhythm(
    history: History, node: Ints, age: Floats, known: Ints, moment_s: float, window_s: float
) -> dict[str, Floats]:
    def around(back_s: float) -> Floats:
        if not len(age) or age.max() < back_s:
            return np.full(len(known), np.nan)
        inside = (age <= back_s) & (age > back_s - min(window_s, DAY_S))
        return np.bincount(node[inside], minlength=len(history.parent))[known].astype(np.float64)

    is_long = len(age) > 0 and age.max() >= DAY_S
    hour, weekday = (moment_s % DAY_S) / 3600, (moment_s // DAY_S + 3) % 7
    return {
        "uses_day_before": around(DAY_S),
        "uses_week_before": around(7 * DAY_S),
        "hour": np.full(len(known), hour if is_long else np.nan),
        "weekday": np.full(len(known), weekday if is_long else np.nan),
    }
