"""What a study says of its parameters: the ones that matter, how much, and along which curve."""

import numpy as np
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from warmup_tasks.tuning.encoding import Encoding
from warmup_tasks.tuning.sensitivity import sensitivity
from warmup_tasks.tuning.study import Trial

SPACE = {
    "much": FloatDistribution(0, 1),
    "little": IntDistribution(1, 10),
    "nothing": FloatDistribution(1, 1000, log=True),
    "kind": CategoricalDistribution(["a", "b"]),
}


def objective(params):
    return 4 * (params["much"] - 0.3) ** 2 + 0.02 * params["little"] + (0.5 if params["kind"] == "a" else 0.0)


@pytest.fixture(scope="module")
def found():
    encoding, random = Encoding(SPACE), np.random.default_rng(0)
    params = [encoding.params_of(random.random(4)) for _ in range(60)]
    trials = [Trial(number, one, objective(one), True, {}) for number, one in enumerate(params)]
    return sensitivity([*trials, Trial(60, params[0], None, False, {})], SPACE, seed=0)


def test_effects_are_ordered_as_the_function_has_them(found):
    assert list(found.effects)[:2] == ["much", "kind"]
    assert found.effects["much"] > 0.5
    assert found.effects["nothing"] < 0.02 < found.effects["little"] + 0.02
    assert 0.9 < sum(found.effects.values()) < 1.2, "the parts add up, as in the function"


def test_curves_follow_the_function(found):
    much = [point for point in found.curves if point.parameter == "much"]
    assert min(much, key=lambda point: point.objective).value == pytest.approx(0.3, abs=0.06)
    kinds = {point.value: point.objective for point in found.curves if point.parameter == "kind"}
    assert kinds["a"] - kinds["b"] == pytest.approx(0.5, abs=0.1)
    little = [point.value for point in found.curves if point.parameter == "little"]
    assert little == list(range(1, 11))


def test_a_few_trials_say_nothing():
    assert sensitivity([Trial(0, {"much": 1.0}, 1.0, True, {})], SPACE, seed=0).effects == {}
