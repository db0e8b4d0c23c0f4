"""The sampler: Optuna's own conformance suite, known functions, constraints, resumption, and no torch."""

import math
import sys

import numpy as np
import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import RandomSampler
from optuna.testing.pytest_samplers import (
    BasicSamplerTestCase,
    RelativeSamplerTestCase,
    SingleOnlySamplerTestCase,
)
from optuna.trial import TrialState

from warmup_tasks.tuning.encoding import Encoding
from warmup_tasks.tuning.sampler import GaussianProcessSampler

optuna.logging.set_verbosity(optuna.logging.ERROR)

BRANIN = {"x": FloatDistribution(-5, 10), "y": FloatDistribution(0, 15)}
MIXED = {
    "rate": FloatDistribution(1e-3, 10, log=True),
    "slots": IntDistribution(1, 64, log=True),
    "depth": IntDistribution(1, 8),
    "kind": CategoricalDistribution(["p", "q", "r"]),
    "idle": FloatDistribution(0, 1),
}


class TestConformance(BasicSamplerTestCase, RelativeSamplerTestCase, SingleOnlySamplerTestCase):
    """What Optuna ships for samplers, with the process asked from the third trial on."""

    @pytest.fixture
    def sampler(self):
        return lambda: GaussianProcessSampler(seed=0, startup_trials=2)


def branin(params):
    x, y = params["x"], params["y"]
    hill = y - 5.1 / (4 * math.pi**2) * x * x + 5 / math.pi * x - 6
    return hill**2 + 10 * (1 - 1 / (8 * math.pi)) * math.cos(x) + 10


def mixed(params):
    kind = {"p": 0.6, "q": 0.0, "r": 1.2}[params["kind"]]
    rate, slots = math.log10(params["rate"]) + 1, math.log(params["slots"]) - 2
    return rate**2 + 0.3 * slots**2 + 0.1 * (params["depth"] - 5) ** 2 + kind


def study_of(sampler, space, objective, trials, study=None):
    study = study or optuna.create_study(sampler=sampler)
    for _ in range(trials):
        trial = study.ask(space)
        study.tell(trial, objective(trial.params))
    return study


def test_it_beats_random_search_in_equal_trials():
    wins = [
        study_of(GaussianProcessSampler(seed, space, startup_trials=8), space, objective, 20).best_value
        < study_of(RandomSampler(seed=seed), space, objective, 20).best_value
        for space, objective in ((BRANIN, branin), (MIXED, mixed))
        for seed in range(6)
    ]
    assert sum(wins) >= 11, "11 of 12 by chance: p < 0.01"


def test_it_finds_the_best_point_that_keeps_the_constraint():
    """Unconstrained the best is at x = 1; only x <= 0.4 is allowed."""
    space = {"x": FloatDistribution(0, 1), "y": FloatDistribution(0, 1)}
    study = optuna.create_study(sampler=GaussianProcessSampler(1, space))
    for _ in range(26):
        trial = study.ask(space)
        trial.set_constraint("limit", trial.params["x"] - 0.4)
        study.tell(trial, (1 - trial.params["x"]) ** 2 + (trial.params["y"] - 0.5) ** 2)
    kept = [trial for trial in study.trials if trial.constraints["limit"] <= 0]
    best = min(kept, key=lambda trial: trial.value)
    assert best.params["x"] == pytest.approx(0.4, abs=0.02)
    assert best.params["y"] == pytest.approx(0.5, abs=0.1)
    assert len([trial for trial in study.trials[12:] if trial.constraints["limit"] <= 0.05]) >= 10


def test_without_any_feasible_trial_it_looks_for_one():
    """Only the corner beyond 0.9 on both sides is allowed, a hundredth of the space."""
    space = {"x": FloatDistribution(0, 1), "y": FloatDistribution(0, 1)}
    study = optuna.create_study(sampler=GaussianProcessSampler(2, space, startup_trials=6))
    for _ in range(18):
        trial = study.ask(space)
        trial.set_constraint("corner", 0.9 - min(trial.params.values()))
        study.tell(trial, trial.params["x"])
    is_kept = [trial.constraints["corner"] <= 0 for trial in study.trials]
    assert not any(is_kept[:6])
    assert any(is_kept[6:])


def test_a_resumed_study_goes_on_as_if_never_interrupted(tmp_path):
    whole = study_of(GaussianProcessSampler(3, MIXED), MIXED, mixed, 18)
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(tmp_path / "journal")))
    for part in (5, 9, 4):  # interrupted among the start-up trials, and behind them
        study = optuna.create_study(
            study_name="s", storage=storage, load_if_exists=True, sampler=GaussianProcessSampler(3, MIXED)
        )
        study_of(None, MIXED, mixed, part, study)
    assert [trial.params for trial in study.trials] == [trial.params for trial in whole.trials]
    assert len({tuple(trial.params.values()) for trial in study.trials}) == 18, "no trial twice"


def test_failed_trials_are_no_observations_and_not_proposed_again():
    space = {"n": IntDistribution(1, 8)}
    study = optuna.create_study(sampler=GaussianProcessSampler(4, space, startup_trials=3))
    for _ in range(8):
        trial = study.ask(space)
        if trial.params["n"] == 8:
            study.tell(trial, state=TrialState.FAIL)
        else:
            study.tell(trial, -trial.params["n"])
    seen = [trial.params["n"] for trial in study.trials]
    assert sorted(set(seen[3:])) == sorted(seen[3:]), "what the process proposed was new each time"
    assert study.best_params["n"] == 7


def test_maximising_is_the_mirror_of_minimising():
    low = study_of(GaussianProcessSampler(5, BRANIN, startup_trials=5), BRANIN, branin, 9)
    high = optuna.create_study(direction="maximize", sampler=GaussianProcessSampler(5, BRANIN, startup_trials=5))
    study_of(None, BRANIN, lambda params: -branin(params), 9, high)
    assert [trial.params for trial in low.trials] == [trial.params for trial in high.trials]


def test_torch_is_not_needed(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)  # importing it now fails
    assert len(study_of(GaussianProcessSampler(6, BRANIN, startup_trials=4), BRANIN, branin, 6).trials) == 6


def test_the_kernel_sees_the_values_that_trials_take():
    encoding = Encoding(MIXED)
    random = np.random.default_rng(0)
    genes = random.random((200, encoding.dimensions))
    again = np.asarray([encoding.genes_of(encoding.params_of(point)) for point in genes])
    apart = encoding.features(genes) - encoding.features(again)
    assert np.abs(apart).max() < 1e-9, "two genes of one trial are one point"
    slots = encoding.feature_slices()
    assert slots["kind"].stop - slots["kind"].start == 3
    kinds = encoding.features(genes)[:, slots["kind"]]
    assert set((kinds > 0).sum(axis=1)) == {1}
    depths = encoding.features(genes)[:, slots["depth"]]
    assert len(np.unique(depths.round(9))) == 8


def test_logarithmic_dimensions_are_even_on_their_logarithm():
    encoding = Encoding(MIXED)
    middle = encoding.params_of(np.full(encoding.dimensions, 0.5))
    assert middle["rate"] == pytest.approx(0.1)
    assert middle["slots"] in (6, 7)
    assert encoding.params_of(np.zeros(encoding.dimensions))["slots"] == 1
    assert encoding.params_of(np.ones(encoding.dimensions))["slots"] == 64
    assert encoding.covers(middle)
    assert not encoding.covers({**middle, "depth": 9})
