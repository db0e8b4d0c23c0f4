"""The frame of the benchmarks, and each benchmark once on a small input: figures are finite, JSON has its shape."""

import json
import math
import re

import pytest
from pydantic import ValidationError

from tests.benchmarks import harness
from tests.benchmarks.__main__ import main
from warmup_tasks.errors import ConfigurationError

QUICK = [name for name in harness.names() if not hasattr(harness.load(name), "NEEDS")]
"""What needs a real engine or a live Airflow has no small input: starting it takes a minute. `make bench` runs it."""


@pytest.mark.parametrize("name", QUICK)
def test_every_benchmark_gives_a_result_of_its_name(name, tmp_path):
    found = harness.load(name).run(tmp_path, scale=0.002)
    assert found.name == name
    assert found.command == f"make bench ONLY={name}"
    assert all(math.isfinite(value) for value in found.headline.values())
    assert all(value >= 0 for figure, value in found.headline.items() if "margin" not in figure)
    assert any(re.search("per_|ratio|share", figure) for figure in found.headline), "a ratio stands in the headline"
    assert len({row["contender"] for row in found.rows}) >= 2
    assert harness.load(name).__doc__


def test_the_json_has_the_promised_fields(tmp_path):
    path = harness.keep(harness.result("heat", {"heat_s": 0.5}, [{"contender": "heat"}]), tmp_path)
    kept = json.loads(path.read_text())
    assert set(kept) == {"name", "headline", "rows", "command", "version"}
    assert {"warmup_tasks", "python", "machine", *harness.LIBRARIES} == set(kept["version"])
    assert harness.BenchResult.model_validate(kept).name == "heat"


@pytest.mark.parametrize(
    ("headline", "rows"),
    [({}, [{}]), ({"x": math.nan}, [{}]), ({"x": math.inf}, [{}]), ({"x": 1.0}, []), ({"x": "y"}, [{}])],
)
def test_results_without_numbers_are_refused(headline, rows):
    with pytest.raises(ValidationError):
        harness.result("heat", headline, rows)


def test_only_the_named_ones_run():
    assert harness.chosen("") == harness.names()
    assert harness.chosen(" heat, redis_load ") == ["heat", "redis_load"]
    with pytest.raises(ConfigurationError, match=r"no benchmark speed; known: .*heat"):
        harness.chosen("heat,speed")


def test_contenders_take_turns_and_the_first_round_does_not_count():
    order = []
    seconds = harness.in_turns({name: lambda name=name: order.append(name) for name in "ab"}, repeats=2)
    assert order == ["a", "b", "b", "a", "a", "b"]
    assert {name: len(found) for name, found in seconds.items()} == {"a": 2, "b": 2}


def test_the_command_keeps_what_it_ran(monkeypatch, tmp_path):
    words = ["bench", "--only", "lake_publish", "--scale", "0.001", "--out", str(tmp_path / "bench")]
    monkeypatch.setattr("sys.argv", words)
    assert main() == 0
    assert [path.name for path in (tmp_path / "bench").iterdir()] == ["lake_publish.json"]
    monkeypatch.setattr("sys.argv", ["bench", "--only", "speed"])
    assert main() == 2
