"""The golden parameters: twelve dimensions with unit and range; refusals name the field (spec 4.4)."""

import pytest

from warmup_tasks.errors import ConfigurationError
from warmup_tasks.parameters import GoldenParameters, PrefetchStrategy, load_parameters

TABLE = {
    "warmup_window_s": (300, 60, 86_400),
    "cache_granularity_tokens": (None, 1, 4096),
    "prefetch_depth": (3, 1, 8),
    "prefetch_strategy": (PrefetchStrategy.ADAPTIVE, None, None),
    "stale_threshold_ms": (5000, 500, 60_000),
    "heat_tau_fast_s": (30, 5, 604_800),
    "heat_tau_slow_s": (21_600, 5, 604_800),
    "top_k": (200, 10, 100_000),
    "similarity_threshold": (0.92, 0.7, 0.999),
    "trigger_threshold_ms": (500, 20, 5000),
    "budget_share": (0.6, 0.05, 0.9),
    "concurrency": (4, 1, 64),
    "lead_time_s": (1800, 60, 14_400),
}
RANGED = [name for name, (_, low, _) in TABLE.items() if low is not None]


def test_the_table_of_the_specification_stands_in_the_model():
    assert list(GoldenParameters.model_fields) == list(TABLE)
    for name, (default, _, _) in TABLE.items():
        assert getattr(GoldenParameters(), name) == default


def test_twelve_dimensions_the_heat_with_two_time_constants():
    assert len({name.replace("_fast", "").replace("_slow", "") for name in GoldenParameters.model_fields}) == 12


@pytest.mark.parametrize("name", TABLE)
def test_every_field_says_unit_sensitivity_retuning_and_meaning(name):
    field = GoldenParameters.model_fields[name]
    extra = field.json_schema_extra
    assert extra["unit"]
    assert extra["sensitivity"] in {"low", "medium", "high"}
    assert extra["retune"] in {"nightly", "weekly", "on model release"}
    assert len(field.description) > 10


@pytest.mark.parametrize("name", RANGED)
def test_ranges_hold_at_both_ends_and_refusals_name_the_field(name):
    _, low, high = TABLE[name]
    for value in (low, high):
        assert getattr(load_parameters({name: value}), name) == value
    for value in (low * 0.9 if isinstance(low, float) else low - 1, high + 1, float("nan"), "many"):
        with pytest.raises(ConfigurationError, match=rf"(?s)parameters refused:.*- {name}: .*got"):
            load_parameters({name: value})


def test_unknown_names_and_strategies_are_refused_with_what_is_allowed():
    with pytest.raises(ConfigurationError, match="topk: Extra inputs"):
        load_parameters({"topk": 3})
    with pytest.raises(ConfigurationError, match=r"prefetch_strategy: .*'static', 'dynamic' or 'adaptive'"):
        load_parameters({"prefetch_strategy": "clever"})


def test_every_refused_field_is_named_at_once_and_long_values_are_cut():
    with pytest.raises(ConfigurationError) as refusal:
        load_parameters({"top_k": 1, "concurrency": 0, "lead_time_s": "x" * 5000})
    message = str(refusal.value)
    assert all(name in message for name in ("top_k", "concurrency", "lead_time_s"))
    assert len(message) < 600


def test_values_from_a_form_or_a_command_line_are_taken_as_text():
    assert load_parameters({"top_k": "300", "budget_share": "0.5", "prefetch_strategy": "static"}) == GoldenParameters(
        top_k=300, budget_share=0.5, prefetch_strategy=PrefetchStrategy.STATIC
    )


def test_the_version_follows_the_values():
    assert GoldenParameters().version() == load_parameters({"heat_tau_fast_s": "30"}).version()
    assert GoldenParameters(top_k=201).version() != GoldenParameters().version()
    assert len(GoldenParameters().version()) == 12
