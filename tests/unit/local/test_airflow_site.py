"""What of a local Airflow can be said without starting one: its settings, its refusals, its REST client."""

import json
import threading
from collections.abc import Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from warmup_tasks.errors import ConfigurationError, GiveUpError, RetryLaterError
from warmup_tasks.local.airflow_api import AirflowApi
from warmup_tasks.local.airflow_site import AirflowSite, Worker, shipped_settings
from warmup_tasks.local.worker_host import worker_host


def test_the_shipped_settings_are_settings_that_airflow_knows():
    from airflow.configuration import conf

    shipped = shipped_settings()
    assert shipped["AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL"] == "1"
    for name in shipped:
        _, section, option = name.lower().split("__")
        assert section == "celery_broker_transport_options" or conf.get(section, option, fallback=None), name


def test_workers_need_a_broker(tmp_path):
    site = AirflowSite(tmp_path, tmp_path, "postgresql+psycopg://x", {}, workers=[Worker("w", ("default",))])
    with pytest.raises(ConfigurationError, match="broker_url"):
        site.start()


def test_the_executor_follows_from_the_workers(tmp_path):
    alone = AirflowSite(tmp_path, tmp_path, "postgresql+psycopg://x", {})
    fleet = AirflowSite(tmp_path, tmp_path, "postgresql+psycopg://x", {}, workers=[Worker("w", ("default",), 3)])
    assert alone._variables()["AIRFLOW__CORE__EXECUTOR"] == "LocalExecutor"
    assert fleet._variables()["AIRFLOW__CORE__EXECUTOR"] == "CeleryExecutor"
    assert fleet._variables()["AIRFLOW__CORE__PARALLELISM"] == "3"


def test_another_retry_pause_is_a_policy_in_airflow_s_home(tmp_path):
    from types import SimpleNamespace

    site = AirflowSite(tmp_path, tmp_path, "x", {}, retry_pause=timedelta(seconds=1.5))
    site._set_retry_pause()
    policy = tmp_path / "config" / "airflow_local_settings.py"
    names: dict[str, object] = {}
    exec(policy.read_text(), names)
    task = SimpleNamespace(retry_delay=None, retry_exponential_backoff=2.0)
    names["task_policy"](task)
    assert (task.retry_delay, task.retry_exponential_backoff) == (timedelta(seconds=1.5), 1.0)
    AirflowSite(tmp_path, tmp_path, "x", {})._set_retry_pause()
    assert not policy.exists()


def test_a_worker_has_a_name_of_its_own(monkeypatch):
    monkeypatch.setenv("WARMUP_WORKER_NAME", "worker-large")
    assert worker_host() == "worker-large"
    monkeypatch.delenv("WARMUP_WORKER_NAME")
    assert worker_host()


class Airflow(BaseHTTPRequestHandler):
    """Tokens hold for one request each; runs end at the second look."""

    def do_GET(self) -> None:
        state = self.server.state
        if self.headers.get("Authorization") != f"Bearer t{state['logins']}" or state["used"] == state["logins"]:
            return self.answer(401, {})
        state["used"] = state["logins"]
        if "broken" in self.path:
            return self.answer(503, {})
        if "absent" in self.path:
            return self.answer(404, {"detail": "no such DAG"})
        state["looks"] += 1
        return self.answer(200, {"state": "success" if state["looks"] > 1 else "running", "task_instances": []})

    def do_POST(self) -> None:
        known = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if known != {"username": "admin", "password": "p"}:
            return self.answer(401, {})
        self.server.state["logins"] += 1
        return self.answer(201, {"access_token": f"t{self.server.state['logins']}"})

    def answer(self, status: int, body: dict[str, object]) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Airflow)
    server.state = {"logins": 0, "used": 0, "looks": 0}
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_it_logs_in_again_when_its_token_ended_and_waits_for_a_run(url):
    with AirflowApi(url, "admin", "p") as api:
        assert api.wait_for_run("d", "r", 10) == "success"
        assert not api.has_dag("absent")


def test_errors_say_who_may_help(url):
    with AirflowApi(url, "admin", "p") as api:
        with pytest.raises(RetryLaterError, match="503"):
            api.get("broken")
        with pytest.raises(ConfigurationError, match="no such DAG"):
            api.get("absent")
        with pytest.raises(GiveUpError, match="waited 0 s for spring"):
            api.wait_until(lambda: False, 0.01, "spring")
    with AirflowApi(url, "admin", "wrong") as api, pytest.raises(ConfigurationError, match="refuses the login"):
        api.get("dags")
    with AirflowApi("http://127.0.0.1:1", "admin", "p") as api:
        assert not api.is_healthy("scheduler")
        with pytest.raises(RetryLaterError, match="does not answer"):
            api.get("dags")
