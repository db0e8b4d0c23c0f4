"""The Params form: generated from the typed models, refusing by name, and back to the models without loss."""

from datetime import UTC, datetime
from typing import Any

import pytest

from tests.dags import nights  # noqa: F401  # names Airflow's home before Airflow is imported
from warmup_tasks.errors import ConfigurationError
from warmup_tasks.items import ItemKind
from warmup_tasks.parameters import GoldenParameters
from warmup_tasks.settings import RunRequest


def form() -> dict[str, Any]:
    from warmup_tasks.airflow.params import form

    return form()


def test_every_field_of_the_models_stands_in_the_form_once() -> None:
    assert list(form()) == [*RunRequest.model_fields, *GoldenParameters.model_fields]


def test_each_default_passes_its_own_rules_and_builds_the_default_models() -> None:
    from warmup_tasks.runs import wishes_of

    values = {name: param.resolve() for name, param in form().items()}
    assert wishes_of(values) == (RunRequest(), {}), "nothing that nobody typed counts as set"
    assert wishes_of({}) == (RunRequest(), {})


def test_limits_choices_types_and_sections_come_from_the_fields() -> None:
    shown = form()
    assert shown["top_k"].schema == {
        "type": ["integer", "null"], "minimum": 10, "maximum": 100_000, "section": "Golden parameters",
    }  # fmt: skip
    assert shown["prefetch_strategy"].schema["enum"] == ["static", "dynamic", "adaptive", None]
    assert shown["seed"].schema["type"] == "integer"
    assert shown["as_of"].schema["type"] == ["string", "null"]
    assert shown["as_of"].schema["format"] == "date-time"
    assert shown["as_of"].schema["section"] == "What to run"
    assert shown["models"].schema["items"] == {"type": "string"}
    assert shown["kinds"].schema["items"] == {"type": "string", "enum": [str(kind) for kind in ItemKind]}
    assert shown["cache_granularity_tokens"].schema["type"] == ["integer", "null"]
    assert shown["heat_tau_fast_s"].schema["type"] == ["number", "null"]
    assert shown["heat_tau_fast_s"].description == "Fast decay of the heat. Empty: as tuned, else 30. Unit: s."
    assert all(param.description for name, param in shown.items() if name != "seed")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("top_k", "many"),
        ("top_k", 9),
        ("seed", -1),
        ("models", "a"),
        ("models", [1]),
        ("dry_run", "yes"),
        ("prefetch_strategy", "psychic"),
        ("similarity_threshold", 1.5),
        ("as_of", 5),
    ],
)
def test_the_form_refuses_a_wrong_value_and_names_the_param(name: str, value: Any) -> None:
    from airflow.sdk.definitions.param import ParamsDict
    from airflow.sdk.exceptions import ParamValidationError

    with pytest.raises(ParamValidationError, match=name):
        ParamsDict(form()).update({name: value})


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"top_k": "many"}, "top_k"),
        ({"seed": -1}, "seed"),
        ({"models": "a"}, "models"),
        ({"as_of": "yesterday"}, "as_of"),
        ({"unheard_of": 1}, "unheard_of"),
    ],
)
def test_the_models_refuse_what_goes_round_the_form(values: dict[str, Any], named: str) -> None:
    from warmup_tasks.runs import wishes_of

    with pytest.raises(ConfigurationError, match=named):
        wishes_of(values)


def test_what_an_operator_types_arrives_typed() -> None:
    from warmup_tasks.runs import wishes_of

    values = {"as_of": "2026-11-27T02:00:00+01:00", "models": ["m"], "top_k": 50, "budget_share": None}
    request, explicit = wishes_of(values)
    assert request.as_of is not None
    assert request.as_of.astimezone(UTC) == datetime(2026, 11, 27, 1, tzinfo=UTC)
    assert (request.models, explicit) == (["m"], {"top_k": 50})
