"""Canonical JSON is RFC 8785 to the byte, whichever of the two writers wrote it."""

import math
import sys

import orjson
import pytest
import rfc8785
from hypothesis import given, settings
from hypothesis import strategies as st

from warmup_tasks.errors import ConfigurationError
from warmup_tasks.identity import MAX_EXACT_INTEGER, canonical_json, prompt_digest

INTEGERS = st.integers(-MAX_EXACT_INTEGER, MAX_EXACT_INTEGER)
SCALARS = st.none() | st.booleans() | INTEGERS | st.floats(allow_nan=False, allow_infinity=False) | st.text()
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=12)


def test_every_character_is_written_as_the_standard_has_it() -> None:
    characters = [chr(code) for code in range(sys.maxunicode + 1) if not 0xD800 <= code < 0xE000]
    assert canonical_json(characters) == rfc8785.dumps(characters)


@settings(max_examples=300, deadline=None)
@given(VALUES)
def test_any_value_is_written_as_the_standard_has_it(value: object) -> None:
    assert canonical_json(value) == rfc8785.dumps(value)


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ({"b": 1, "a": [True, None, ()]}, b'{"a":[true,null,[]],"b":1}'),
        ({"\U0001f600": 1, "\ue000": 2}, '{"\U0001f600":1,"\ue000":2}'.encode()),  # in UTF-16 order
        ([1.0, 1e21, 1e-7, -0.0], b"[1,1e+21,1e-7,0]"),
        ([2**53, -(2**63)], b'[{"!int":"9007199254740992"},{"!int":"-9223372036854775808"}]'),
    ],
)  # fmt: skip
def test_known_forms(value: object, written: bytes) -> None:
    assert canonical_json(value) == written


@pytest.mark.parametrize("value", [math.nan, [math.inf], "\ud800", {"a": b"bytes"}])
def test_what_has_no_form_is_refused(value: object) -> None:
    with pytest.raises(ConfigurationError, match="no canonical JSON form"):
        canonical_json(value)


def test_the_digest_of_a_prompt_does_not_depend_on_the_order_of_keys_or_the_form_of_numbers() -> None:
    one = orjson.loads(b'[{"role": "user", "content": "x", "n": 1}]')
    two = orjson.loads(b'[{"n": 1.0, "content": "x", "role": "user"}]')
    assert prompt_digest(one) == prompt_digest(two)
