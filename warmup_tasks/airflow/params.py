"""The Params form of a DAG, generated from the typed models, and the way back from a form's values to the models.

A field of :class:`RunRequest` or :class:`GoldenParameters` appears in the form with its type, default, limits, choices
and description; nothing is repeated here. Values are checked twice: by Airflow when a run is triggered, and by the
models themselves when it starts, so that a run whose values bypass the form is refused as well.
"""

from typing import Any

from airflow.sdk import Param
from pydantic import BaseModel

from warmup_tasks.parameters import GoldenParameters
from warmup_tasks.settings import RunRequest

REQUEST_SECTION = "What to run"
PARAMETERS_SECTION = "Golden parameters"
KEPT = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minLength", "maxLength", "pattern", "format")


def form(first: type[BaseModel] | None = None) -> dict[str, Param]:
    """Return the Params of a run: every field of the request, then every golden parameter.

    What ``first`` asks, such as what is released, stands before them.

    A golden parameter is empty, so that what arrives is what an operator really set: Airflow hands on a default that
    stands in the form as if somebody had typed it, and no tuned value would ever count.
    """
    asked = {} if first is None else _params(first, f"What the {first.__name__.lower()} is")
    return {
        **asked,
        **_params(RunRequest, REQUEST_SECTION),
        **_params(GoldenParameters, PARAMETERS_SECTION, are_empty=True),
    }


def _params(model: type[BaseModel], section: str, *, are_empty: bool = False) -> dict[str, Param]:
    schema = model.model_json_schema()
    definitions = schema.get("$defs", {})
    fields = {name: _emptied(field) if are_empty else field for name, field in schema["properties"].items()}
    return {name: _param(field, definitions, section) for name, field in fields.items()}


def _emptied(field: dict[str, Any]) -> dict[str, Any]:
    """Return a field that may be left empty and says what that means."""
    if field["default"] is None:
        return field
    said = {"description": f"{field['description']} Empty: as tuned, else {_plain(field['default'])}."}
    return {**field, "anyOf": [field, {"type": "null"}], "default": None, **said}


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _param(field: dict[str, Any], definitions: dict[str, Any], section: str) -> Param:
    shapes = [_resolve(shape, definitions) for shape in field.get("anyOf", [field])]
    rules: dict[str, Any] = {}
    for shape in shapes:
        rules |= {key: shape[key] for key in (*KEPT, "enum") if key in shape}
        if "items" in shape:
            inner = _resolve(shape["items"], definitions)
            rules["items"] = {key: inner[key] for key in ("type", "enum") if key in inner}
    types = [shape["type"] for shape in shapes]
    if "enum" in rules and "null" in types:
        rules["enum"] = [*rules["enum"], None]
    unit = f" Unit: {field['unit']}." if field.get("unit") not in (None, "name") else ""
    return Param(
        field.get("default"),
        description=f"{field.get('description', '')}{unit}".strip() or None,
        type=types if len(types) > 1 else types[0],
        section=section,
        **rules,
    )


def _resolve(shape: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    if "$ref" in shape:
        return {**definitions[shape["$ref"].rsplit("/", 1)[-1]], **{k: v for k, v in shape.items() if k != "$ref"}}
    return shape
