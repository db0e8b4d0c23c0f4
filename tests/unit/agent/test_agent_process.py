import signal
import socket
import subprocess
import sys

import httpx
import pytest

from warmup_tasks.local.processes import free_port, start

FLEET = """
models: [{name: m}]
replicas: [{name: r0, url: "http://127.0.0.1:1", profile: large, model: m}]
embedder: {embedder: e, revision: "1", dimensions: 4}
"""
AWAY = "redis://127.0.0.1:1/0"


@pytest.fixture
def command(tmp_path):
    (tmp_path / "fleet.yaml").write_text(FLEET)

    def build(port: int, *more: str) -> list[str]:
        options = ["--port", str(port), "--fleet", str(tmp_path / "fleet.yaml"), "--redis-url", AWAY, *more]
        return [sys.executable, "-m", "warmup_tasks.agent", *options]

    return build


def test_runs_without_redis_and_stops_cleanly(command, tmp_path):
    port = free_port()

    def is_up() -> bool:
        try:
            return httpx.get(f"http://127.0.0.1:{port}/healthz").status_code == 200
        except httpx.TransportError:
            return False

    with start("agent", command(port), tmp_path / "agent.log") as agent:
        agent.wait_until(is_up, 20)
        assert httpx.get(f"http://127.0.0.1:{port}/ready?model=m&replica=r0").status_code == 503
        agent.popen.send_signal(signal.SIGTERM)
        assert agent.popen.wait(10) == 0
        assert "Traceback" not in agent.tail(100)


def test_a_taken_port_is_named(command):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ended = subprocess.run(command(taken.getsockname()[1]), capture_output=True, text=True, timeout=20, check=False)
    assert ended.returncode == 2
    assert "choose another --port" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_refused_setting_is_named(command):
    ended = subprocess.run(
        command(free_port(), "--poll-s", "30"), capture_output=True, text=True, timeout=20, check=False
    )
    assert ended.returncode == 2
    assert "poll_s" in ended.stderr


def test_imports_stay_light():
    heavy = ["pandas", "pyarrow", "numpy", "duckdb", "sklearn", "airflow", "matplotlib", "scipy", "optuna"]
    code = f"import sys, warmup_tasks.agent.__main__; print([m for m in {heavy} if m in sys.modules])"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert told.stdout.strip() == "[]"
