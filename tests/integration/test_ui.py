"""``make ui``: a real Airflow with everything comes up, takes a run, and goes without a trace."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.live import clean_environment, processes_that_mention
from warmup_tasks.local.airflow_api import AirflowApi

REPOSITORY = Path(__file__).resolve().parents[2]
START_S, RUN_S, STOP_S = 240, 180, 60
DAG = "nightly_warmup"


@pytest.fixture(scope="module")
def ui(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    folder = tmp_path_factory.mktemp("ui")
    command = [sys.executable, "-m", "warmup_tasks.cli", "ui", "--json", "--port", "0", "--out", str(folder)]
    with (folder / "err.log").open("w") as err:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=err, text=True, start_new_session=True, env=clean_environment()
        )
        yield process, folder
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait(STOP_S)


def read_json(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    text = ""
    for line in process.stdout:
        text += line
        if line.startswith("}"):
            return json.loads(text)
    raise AssertionError(f"ended with {process.wait()}: {text}")


def test_it_takes_a_run_and_leaves_nothing_behind(ui):
    process, folder = ui
    shown = read_json(process)
    assert set(shown["dags"]) >= {path.stem for path in (REPOSITORY / "dags").glob("*.py")}
    with AirflowApi(shown["url"], shown["user"], shown["password"]) as api:
        assert api.is_healthy("metadatabase", "scheduler", "triggerer", "dag_processor")
        assert b"<html" in api.page("/").lower()
        tonight = api.wait_until(lambda: api.runs(DAG), START_S, "tonight's run")[0]
        assert tonight["run_type"] == "scheduled"
        by_hand = api.trigger(DAG, {"as_of": shown["as_of"], "dry_run": True, "tuning_time_s": 0})
        api.patch(f"dags/{DAG}/dagRuns/{tonight['dag_run_id']}", {"state": "failed"})
        assert api.wait_for_run(DAG, by_hand, RUN_S) == "success"
        states = {task["task_id"]: task["state"] for task in api.task_instances(DAG, by_hand)}
    assert states["plan"] == states["report"] == "success"
    assert states["large.probe"] == states["publish"] == "skipped"

    process.send_signal(signal.SIGINT)
    assert process.wait(STOP_S) == 0, (folder / "err.log").read_text()[-2000:]
    assert processes_that_mention(str(folder)) == []
