"""A log as paths through its prefix tree: which request passed through which node, as which turn of which session.

A request continues a session when it begins with at least half of an earlier prompt; no session id is needed. All that
is said of a request follows from it and those before it.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Self

import numpy as np

from warmup_tasks.demand.prefix_tree import NO_NODE, Floats, Ints

SAME_SESSION_SHARE = 0.5
_CUTS = 6


class Visits(NamedTuple):
    """Each request's way through the tree, in order of time: shape (visits,) each.

    ``previous`` is the request that passed through the same node before (-1: none); ``is_new_session`` says whether
    the request's session is there for the first time.
    """

    request: Ints
    node: Ints
    previous: Ints
    is_new_session: Ints


class Turns(NamedTuple):
    """What each request is within its session: shape (requests,) each.

    ``gap_s`` is the time since the turn before (NaN: the first turn), ``shared_tokens`` what had been asked before,
    ``growth_tokens`` what had not.
    """

    session: Ints
    number: Ints
    gap_s: Floats
    shared_tokens: Ints
    growth_tokens: Ints


@dataclass(frozen=True, eq=False)
class History:
    """Requests in order of time on a prefix tree whose runs are cut before each prompt's end.

    Attributes:
        parent: of each node, -1 at the top; parents stand before children.
        start_tokens: tokens before each node's run.
        end_tokens: tokens up to its end.
        leaf: deepest node of each request, -1: none.
        times_s: of each request, never falling.
        step_tokens: smallest prefix step.
        origin: the node of the uncut tree that each node is a part of.
        tenants: a number for each request's tenant; None: unknown.
    """

    parent: Ints
    start_tokens: Ints
    end_tokens: Ints
    leaf: Ints
    times_s: Floats
    step_tokens: int
    origin: Ints
    tenants: Ints | None = None

    @classmethod
    def of_tree(
        cls,
        parent: Ints,
        start_tokens: Ints,
        end_tokens: Ints,
        leaf: Ints,
        times_s: Floats,
        *,
        step_tokens: int,
        tenants: Ints | None = None,
    ) -> Self:
        """Return a compressed tree as a history: its runs cut at 1, 2, 4, ... 32 steps before each prompt's end.

        The next turn of a session often leaves its predecessor's last steps out. Cut at the same places everywhere,
        runs that were continued look like runs that were not, whatever a prediction is made for.
        """
        nodes, ends = _cuts(parent, start_tokens, end_tokens, leaf, step_tokens)
        is_first = np.ones(len(nodes), np.bool_)
        is_first[1:] = nodes[1:] != nodes[:-1]
        last_part = np.zeros(len(parent) + 1, np.int64)
        last_part[nodes] = np.arange(len(nodes))
        last_part[NO_NODE] = NO_NODE
        before = np.arange(len(nodes)) - 1
        starts = np.where(is_first, start_tokens[nodes], ends[before])
        parents = np.where(is_first, last_part[parent[nodes]], before)
        return cls(parents, starts, ends, last_part[leaf], times_s, step_tokens, nodes, tenants)

    @property
    def tokens(self) -> Ints:
        """Length of each node's run."""
        return self.end_tokens - self.start_tokens

    @cached_property
    def prompt_tokens(self) -> Ints:
        """The tokens of each request that stand in the tree."""
        return np.where(self.leaf == NO_NODE, 0, self.end_tokens[self.leaf]) if len(self.parent) else self.leaf * 0

    @cached_property
    def visits(self) -> Visits:
        """All requests' paths."""
        requests, nodes = [np.flatnonzero(self.leaf != NO_NODE)], [self.leaf[self.leaf != NO_NODE]]
        while len(nodes[-1]):
            above = self.parent[nodes[-1]]
            requests.append(requests[-1][above != NO_NODE])
            nodes.append(above[above != NO_NODE])
        request, node = np.concatenate(requests), np.concatenate(nodes)
        order = np.lexsort((node, request))
        request, node = request[order].astype(np.int64), node[order].astype(np.int64)
        previous = _previous(node, request)
        visits = Visits(request, node, previous, np.zeros(len(node), np.int64))
        session = self._turns_of(visits).session[request]
        pairs = node * (len(self.leaf) + 1) + session
        _, first = np.unique(pairs, return_index=True)
        visits.is_new_session[first] = 1
        return visits

    @cached_property
    def turns(self) -> Turns:
        """The place of each request in its session."""
        return self._turns_of(self.visits)

    def requests_before(self, moment_s: float) -> int:
        """Return how many requests came before a moment."""
        return int(np.searchsorted(self.times_s, moment_s, side="left"))

    def _turns_of(self, visits: Visits) -> Turns:
        count = len(self.leaf)
        shared, before = np.zeros(count, np.int64), np.full(count, NO_NODE, np.int64)
        known = visits.previous != NO_NODE
        # nodes of a path stand in order of depth: the last assignment is the deepest known node
        shared[visits.request[known]] = self.end_tokens[visits.node[known]]
        before[visits.request[known]] = visits.previous[known]
        lengths = self.prompt_tokens
        continues = (before != NO_NODE) & (shared >= SAME_SESSION_SHARE * lengths[before]) & (shared > 0)
        session, number = np.arange(count), np.zeros(count, np.int64)
        for request in np.flatnonzero(continues).tolist():
            session[request], number[request] = session[before[request]], number[before[request]] + 1
        gap = np.where(continues, self.times_s - self.times_s[before], np.nan) if count else self.times_s
        return Turns(session, number, gap, shared, lengths - shared)


def _previous(node: Ints, request: Ints) -> Ints:
    """Return the request of the visit before each visit to the same node (-1: none)."""
    order = np.argsort(node, kind="stable")
    previous = np.full(len(node), NO_NODE, np.int64)
    follows = node[order][1:] == node[order][:-1]
    previous[order[1:][follows]] = request[order[:-1][follows]]
    return previous


def _cuts(parent: Ints, start: Ints, end: Ints, leaf: Ints, step_tokens: int) -> tuple[Ints, Ints]:
    """Return (node, end) of each part of each node, sorted."""
    leaves = np.unique(leaf[leaf != NO_NODE])
    nodes, ends = [np.arange(len(parent))], [end]
    for power in range(_CUTS):
        place, node = end[leaves] - step_tokens * 2**power, leaves
        while len(node) and (is_above := start[node] >= place).any():
            node = np.where(is_above, parent[node], node)
            node, place = node[node != NO_NODE], place[node != NO_NODE]
        is_inside = place < end[node]
        nodes.append(node[is_inside])
        ends.append(place[is_inside])
    parts = np.unique(np.column_stack([np.concatenate(nodes), np.concatenate(ends)]), axis=0)
    return parts[:, 0].astype(np.int64), parts[:, 1].astype(np.int64)


def power_of_two(steps: Ints) -> Ints:
    """Return 0 for 0 steps, 1 for 1, 2 for 2 and 3, 3 for 4 to 7, and so on up to 6 for 32 and more."""
    powers = 1 + np.floor(np.log2(np.maximum(1, steps))).astype(np.int64)
    return np.where(steps <= 0, 0, np.minimum(powers, _CUTS))
