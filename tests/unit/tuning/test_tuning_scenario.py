"""Scenarios: restarts and surges by seed, and no request invented."""

import numpy as np
import pytest

from warmup_tasks.errors import ConfigurationError
from warmup_tasks.tuning.scenario import Disturbances, Scenario
from warmup_tasks.tuning.traffic import busiest, every_nth

QUIET = Disturbances(life_s=300, surge_every_s=400, surge_s=60, surge_speed=3.0)


def test_the_same_requests_come_in_the_same_order_some_of_them_faster(service):
    made = Scenario.of(service, 300, 1500, 1, QUIET)
    assert (made.accesses.ids == service.ids).all()
    before, after = np.diff(service.times_s), np.diff(made.accesses.times_s)
    ratio = after[before > 1e-3] / before[before > 1e-3]
    assert np.allclose(ratio[(ratio > 0.4) & (ratio < 0.9)].size / ratio.size, 0, atol=0.02), "edges of surges alone"
    assert ((ratio > 0.32) & (ratio <= 1 + 1e-9)).all()
    assert 0.05 < (ratio < 0.4).mean() < 0.5
    inside = len(made.accesses.between(made.begin_s, made.end_s))
    assert inside == len(service.between(300, 1500))


def test_seeds_place_restarts_and_lives_cover_the_stretch(service):
    one, same, other = (Scenario.of(service, 300, 1500, seed, QUIET) for seed in (1, 1, 2))
    assert one.restarts_s == same.restarts_s != other.restarts_s
    lives = one.lives()
    assert lives[0][0] == one.begin_s
    assert lives[-1][1] == one.end_s
    assert [end for _, end in lives[:-1]] == [begin for begin, _ in lives[1:]] == list(one.restarts_s)
    assert all(end - begin >= 0.5 * QUIET.life_s for begin, end in lives[:-1])


def test_too_few_requests_are_refused(service):
    with pytest.raises(ConfigurationError, match="200 are needed"):
        Scenario.of(service, 0, 50, 1, QUIET)


def test_the_busiest_stretch_is_found():
    times = np.asarray([0, 100, 101, 102, 103, 200, 300.0])
    assert busiest(times, 0, 301, 10, 99) == (100, 110)
    assert busiest(times, 150, 301, 1000, 99) == (150, 301)
    assert busiest(times, 102.5, 301, 10, 99) == (103, 113)
    assert busiest(times, 0, 301, 10, 2) == (100, 105), "half as long where it holds twice too many"


def test_dealing_in_turn_gives_each_replica_its_share(service):
    third = every_nth(service, 3)
    assert len(third) == len(service.times_s[::3])
    assert (third.request(5) == service.request(15)).all()
    assert every_nth(service, 1) is service
