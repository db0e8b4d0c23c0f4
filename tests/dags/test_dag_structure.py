"""The DAG's shape: arrows, rules, queues, size; and that parsing it costs little and reads one file."""

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.dags.nights import DAGS, REPOSITORY
from warmup_tasks.errors import ConfigurationError
from warmup_tasks.items import WAVES
from warmup_tasks.resources import include_path

FILE = DAGS / "nightly_warmup.py"
THREE = """
profiles:
  - {name: a100.80gb, queue: gpu.a100, bandwidth_gb_per_s: 2039, latency_ns: 120, compute_tflops: 312}
  - {name: l4, queue: gpu.l4, bandwidth_gb_per_s: 300, latency_ns: 120, compute_tflops: 121}
  - {name: cpu, queue: cpu, bandwidth_gb_per_s: 40, latency_ns: 90, compute_tflops: 1}
"""
PARSE = """
import json, socket, sys, time
opened = []
def watch(event, arguments):
    if event == "socket.connect":
        raise AssertionError("the network was touched while parsing")
    if event == "open" and isinstance(arguments[0], str):
        opened.append(arguments[0])
import airflow.sdk, airflow.providers.standard.operators.empty, airflow.triggers.shared_stream
from airflow.sdk import Asset, AssetWatcher, CronDataIntervalTimetable, CronTriggerTimetable, Param, task
task.short_circuit
before, own_s = set(sys.modules), {}
sys.addaudithook(watch)
import runpy
for path in sys.argv[1:]:
    cpu = time.process_time()
    runpy.run_path(path)
    own_s[path] = time.process_time() - cpu
print(json.dumps({"modules": sorted(set(sys.modules) - before), "opened": opened, "own_s": own_s}))
"""
HEAVY = {
    "pandas", "duckdb", "sklearn", "pyarrow", "numpy", "scipy", "matplotlib", "great_expectations", "optuna", "redis",
    "httpx", "zmq", "rich", "starlette", "uvicorn", "rustworkx", "torch", "vllm",
}  # fmt: skip


def parsed(monkeypatch: pytest.MonkeyPatch, profiles: Path) -> Any:
    monkeypatch.setenv("WARMUP_PROFILES", str(profiles))
    return parsed_file(monkeypatch, "nightly_warmup")


def parsed_file(monkeypatch: pytest.MonkeyPatch, dag_id: str) -> Any:
    """Return the DAG of the file that is called as it is."""
    from airflow.dag_processing.dagbag import DagBag

    bag = DagBag(dag_folder=str(DAGS / f"{dag_id}.py"))
    assert bag.import_errors == {}
    return bag.dags[dag_id]


@pytest.fixture
def dag(monkeypatch: pytest.MonkeyPatch) -> Any:
    return parsed(monkeypatch, include_path("profiles.yaml"))


def upstream(dag: Any, task_id: str) -> set[str]:
    return set(dag.get_task(task_id).upstream_task_ids)


def test_the_arrows_are_the_order_of_a_night(dag: Any) -> None:
    assert upstream(dag, "begin") == set()
    for before, after in (("begin", "extract"), ("extract", "profile"), ("profile", "plan"), ("plan", "go_ahead")):
        assert upstream(dag, after) == {before}
    for name in ("large", "small"):
        assert upstream(dag, f"{name}.worker") == {"go_ahead"}
        assert upstream(dag, f"{name}.replay_cold") == {f"{name}.worker"}
        assert upstream(dag, f"{name}.twins") == {"go_ahead", f"{name}.worker", f"{name}.replay_cold"}
        for wave in WAVES:
            earlier = {f"{name}.wave_{wave - 1}.warm"} if wave else set()
            assert upstream(dag, f"{name}.wave_{wave}.shards") == {f"{name}.twins"}
            assert upstream(dag, f"{name}.wave_{wave}.warm") == {f"{name}.wave_{wave}.shards"} | earlier
        assert upstream(dag, f"{name}.publish") == {f"{name}.probe"}
        assert upstream(dag, f"{name}.probe") == {f"{name}.twins", f"{name}.warmed"}
        assert upstream(dag, f"replay_warm.{name}") == {"publish", f"{name}.worker"}
    assert upstream(dag, "probed") == {"large.publish", "small.publish"}
    assert upstream(dag, "publish") == {"go_ahead", "probed"}
    assert upstream(dag, "report") == {"plan", "measured", "tuned"}


def test_tuning_runs_beside_the_night_and_nothing_but_the_report_waits_for_it(dag: Any) -> None:
    assert upstream(dag, "tune") == {"profile"}
    assert upstream(dag, "tuned") == {"tune"}
    assert set(dag.get_task("tune").downstream_task_ids) == {"tuned"}
    assert set(dag.get_task("tuned").downstream_task_ids) == {"report"}
    assert dag.get_task("tuned").trigger_rule == "all_done", "a killed tuning keeps no report from being written"


def test_done_sees_every_failure_that_nothing_else_passes_on(dag: Any) -> None:
    """A wave whose list of shards failed cannot be expanded, so that shows in the wave; tuning shows nowhere."""
    tolerant = {task.task_id for task in dag.tasks if task.trigger_rule == "all_done"}
    hidden = {t for task_id in tolerant for t in upstream(dag, task_id)} - tolerant - {"tune"}
    hidden = {task_id for task_id in hidden if not task_id.endswith(".shards")}
    assert hidden
    reaching = upstream(dag, "done")
    forwarded = {t for t in hidden if set(dag.get_task(t).downstream_task_ids) - tolerant}
    assert hidden - reaching - forwarded == set()
    assert [task.task_id for task in dag.tasks if not task.downstream_task_ids] == ["done"]
    assert {f"{name}.wave_{wave}.warm" for name in ("large", "small") for wave in WAVES} <= reaching


def test_work_on_replicas_goes_to_their_profile_s_queue(dag: Any) -> None:
    for task in dag.tasks:
        name = task.task_id.split(".")[0] if task.task_id.split(".")[0] != "replay_warm" else task.task_id.split(".")[1]
        is_work = task.task_id.endswith(("replay_cold", "twins", "warm", "probe")) or "replay_warm" in task.task_id
        assert task.queue == (f"gpu.{name}" if is_work else "default"), task.task_id


def test_the_shape_follows_from_the_profiles_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, dag: Any) -> None:
    path = tmp_path / "profiles.yaml"
    path.write_text(THREE)
    three = parsed(monkeypatch, path)
    per_profile = 2 * len(WAVES) + 7
    assert len(dag.tasks) == 14 + 2 * per_profile
    assert len(three.tasks) == 14 + 3 * per_profile
    assert three.get_task("a100_80gb.wave_3.warm").queue == "gpu.a100"
    assert three.get_task("a100_80gb.twins").op_args == ("a100.80gb",)


def test_two_profiles_never_share_a_branch() -> None:
    from warmup_tasks.airflow.shards import group_ids

    with pytest.raises(ConfigurationError, match=r"a\.b, a_b"):
        group_ids(["a.b", "a_b"])


def test_the_schedule_is_a_nightly_interval_without_catching_up(dag: Any) -> None:
    from airflow.sdk import CronDataIntervalTimetable

    assert isinstance(dag.timetable, CronDataIntervalTimetable)
    assert (dag.timetable.expression, str(dag.timetable.timezone)) == ("0 2 * * *", "UTC")
    assert (dag.catchup, dag.max_active_runs) == (False, 1)


def test_every_task_has_the_retries_by_error_class(dag: Any) -> None:
    from airflow.providers.standard.operators.empty import EmptyOperator

    from warmup_tasks.airflow.retries import RETRY_POLICY

    work = [task for task in dag.tasks if not isinstance(task, EmptyOperator)]
    assert all(task.retry_policy is RETRY_POLICY and task.retries == 2 for task in work)


def test_the_runbook_names_every_step_that_can_be_red(dag: Any) -> None:
    for task in dag.tasks:
        last = task.task_id.removeprefix("large.").removeprefix("small.")
        if last in ("go_ahead", "warmed", "probed", "measured", "tuned") or last.endswith("shards"):
            continue
        word = last.replace("wave_0", "wave_<n>").replace("wave_1", "wave_<n>")
        word = word.replace("wave_2", "wave_<n>").replace("wave_3", "wave_<n>")
        word = "replay_warm" if word.startswith("replay_warm") else word
        assert word in dag.doc_md, word


def test_task_bodies_only_call_the_library() -> None:
    room = REPOSITORY / "warmup_tasks" / "airflow"
    for path in (*DAGS.glob("*.py"), *(room / f"{name}.py" for name in ("tasks", "reactions", "renewals"))):
        for node in ast.walk(ast.parse(path.read_text())):
            is_task = isinstance(node, ast.FunctionDef) and any("task" in ast.dump(d) for d in node.decorator_list)
            if is_task:
                assert node.body[-1].end_lineno - node.body[0].end_lineno <= 5, (path.name, node.name)


def test_parsing_is_light_and_reads_the_profiles_file_alone() -> None:
    files = [str(path) for path in sorted(DAGS.glob("*.py"))]
    command = [sys.executable, "-c", PARSE, *files]
    answer = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY, timeout=120, check=False)
    assert answer.returncode == 0, answer.stderr
    found = json.loads(answer.stdout.splitlines()[-1])
    assert {module.split(".")[0] for module in found["modules"]} & HEAVY == set()
    data = [path for path in found["opened"] if path.startswith(str(REPOSITORY)) and not path.endswith((".py", ".pyc"))]
    ours = [path for path in data if ".venv" not in path]
    assert ours == [str(include_path("profiles.yaml"))] * len(files)
    assert max(found["own_s"].values()) < 1.0
