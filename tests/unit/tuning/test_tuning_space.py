"""The search space says nothing that the parameters do not say."""

import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from warmup_tasks.errors import ConfigurationError
from warmup_tasks.parameters import GoldenParameters, PrefetchStrategy
from warmup_tasks.tuning.space import JUDGED_BY_REPLAY, search_space


def test_bounds_types_and_choices_are_those_of_the_fields():
    space = search_space()
    assert list(space) == list(JUDGED_BY_REPLAY)
    assert space["trigger_threshold_ms"] == FloatDistribution(20, 5000, log=True)
    assert space["warmup_window_s"] == IntDistribution(60, 86_400, log=True)
    assert space["prefetch_depth"] == IntDistribution(1, 8)
    assert space["budget_share"] == FloatDistribution(0.05, 0.9)
    assert space["prefetch_strategy"] == CategoricalDistribution([str(one) for one in PrefetchStrategy])


def test_every_corner_of_the_space_is_a_valid_setting():
    for end in ("low", "high"):
        values = {
            name: one.choices[0] if hasattr(one, "choices") else getattr(one, end)
            for name, one in search_space().items()
        }
        assert GoldenParameters.model_validate(values).model_dump(mode="json").items() >= values.items()


def test_what_has_no_range_is_refused_by_name():
    with pytest.raises(ConfigurationError, match="cache_granularity_tokens has no range"):
        search_space(["cache_granularity_tokens"])
    with pytest.raises(ConfigurationError, match=r"speed is no parameter; known: warmup_window_s"):
        search_space(["speed"])
