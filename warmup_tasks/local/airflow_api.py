"""A small client of Airflow's REST interface, for local sites and tests: log in, trigger, wait, look.

It starts nothing and knows no DAG. Everything it waits for has a deadline.
"""

import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Self, TypeVar

import httpx

from warmup_tasks.errors import ConfigurationError, GiveUpError, RetryLaterError

REQUEST_DEADLINE_S = 30.0
PAUSE_S = 0.2
PAGE = 100
ENDED = ("success", "failed")

Json = dict[str, Any]
T = TypeVar("T")


class AirflowApi:
    """Airflow's REST interface as one user. Use it as a context manager, or close it.

    Args:
        url: of the API server, without a path.
        user: name of the login.
        password: of the login.
    """

    def __init__(self, url: str, user: str, password: str) -> None:
        self.url = url
        self._login = {"username": user, "password": password}
        self._http = httpx.Client(base_url=url, timeout=REQUEST_DEADLINE_S)
        self._token = ""

    def get(self, path: str, **query: Any) -> Json:
        """Return what ``GET /api/v2/<path>`` answers."""
        return self.request("GET", path, query=query)

    def post(self, path: str, body: Mapping[str, Any]) -> Json:
        """Return what ``POST /api/v2/<path>`` answers."""
        return self.request("POST", path, body=body)

    def patch(self, path: str, body: Mapping[str, Any]) -> Json:
        """Return what ``PATCH /api/v2/<path>`` answers."""
        return self.request("PATCH", path, body=body)

    def request(
        self, method: str, path: str, *, query: Mapping[str, Any] | None = None, body: Mapping[str, Any] | None = None
    ) -> Json:
        """Return a JSON answer; logs in where needed.

        Raises:
            ConfigurationError: Airflow refused what was asked; its own words are quoted.
            RetryLaterError: the server is away, or failed.
        """
        try:
            if not self._token:
                self._token = self._log_in()
            answer = self._send(method, path, query, body)
            if answer.status_code == httpx.codes.UNAUTHORIZED:
                self._token = self._log_in()
                answer = self._send(method, path, query, body)
        except httpx.TransportError as error:
            raise RetryLaterError(f"Airflow at {self.url} does not answer: {type(error).__name__}") from None
        if answer.is_server_error:
            raise RetryLaterError(f"{method} {path}: Airflow answered {answer.status_code}")
        if answer.is_client_error:
            raise ConfigurationError(f"{method} {path}: Airflow answered {answer.status_code}: {answer.text[:500]}")
        return dict(answer.json()) if answer.content else {}

    def is_healthy(self, *parts: str) -> bool:
        """Whether these parts (``scheduler``, ``triggerer``, ``dag_processor``, ``metadatabase``) say that they are."""
        try:
            answer = self._http.get("/api/v2/monitor/health", timeout=5.0)
            found = answer.json()
        except (httpx.HTTPError, ValueError):
            return False
        return bool(answer.is_success) and all((found.get(part) or {}).get("status") == "healthy" for part in parts)

    def page(self, path: str) -> bytes:
        """Return a page of the user interface."""
        return self._http.get(path, follow_redirects=True).raise_for_status().content

    def has_dag(self, dag_id: str) -> bool:
        """Whether the DAG processor has read this DAG."""
        try:
            self.get(f"dags/{dag_id}")
        except ConfigurationError:
            return False
        return True

    def set_paused(self, dag_id: str, *, is_paused: bool) -> None:
        """Pause a DAG, or let it run."""
        self.patch(f"dags/{dag_id}", {"is_paused": is_paused})

    def trigger(self, dag_id: str, conf: Mapping[str, Any] | None = None, logical_date: datetime | None = None) -> str:
        """Start a run by hand and return its id; without a date it has a null logical date, as from the form."""
        when = None if logical_date is None else logical_date.isoformat()
        return str(self.post(f"dags/{dag_id}/dagRuns", {"logical_date": when, "conf": dict(conf or {})})["dag_run_id"])

    def runs(self, dag_id: str, **query: Any) -> list[Json]:
        """Return the runs of a DAG, the oldest first, such as those of ``run_type="backfill"``."""
        return list(self.get(f"dags/{dag_id}/dagRuns", order_by="run_after", limit=PAGE, **query)["dag_runs"])

    def state(self, dag_id: str, run_id: str) -> str:
        """Return the state of a run."""
        return str(self.get(f"dags/{dag_id}/dagRuns/{run_id}")["state"])

    def wait_for_run(self, dag_id: str, run_id: str, deadline_s: float) -> str:
        """Return the state in which a run ended.

        Raises:
            GiveUpError: it had not ended by the deadline; the message names the tasks that were under way.
        """
        try:
            return self.wait_until(lambda: self._ended(dag_id, run_id), deadline_s, f"{dag_id} {run_id} to end")
        except GiveUpError as error:
            open_tasks = [
                f"{task['task_id']}[{task['map_index']}] {task['state']}"
                for task in self.task_instances(dag_id, run_id)
                if task["state"] not in ("success", "skipped", None)
            ]
            raise GiveUpError(f"{error}; {', '.join(open_tasks) or 'no task is under way'}") from None

    def task_instances(self, dag_id: str, run_id: str) -> list[Json]:
        """Return all task instances of a run, with state, queue, hostname and try number."""
        path = f"dags/{dag_id}/dagRuns/{run_id}/taskInstances"
        found: list[Json] = []
        while True:
            page = list(self.get(path, limit=PAGE, offset=len(found))["task_instances"])
            found += page
            if len(page) < PAGE:
                return found

    def wait_until(self, look: Callable[[], T], deadline_s: float, what: str) -> T:
        """Return the first true value that ``look`` gives; a server that is away counts as not yet.

        Raises:
            GiveUpError: there was none within the deadline.
        """
        end, problem = time.monotonic() + deadline_s, ""
        while time.monotonic() < end:
            try:
                if found := look():
                    return found
            except RetryLaterError as error:
                problem = f" ({error})"
            time.sleep(PAUSE_S)
        raise GiveUpError(f"waited {deadline_s:.0f} s for {what}{problem}")

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ended(self, dag_id: str, run_id: str) -> str:
        state = self.state(dag_id, run_id)
        return state if state in ENDED else ""

    def _log_in(self) -> str:
        answer = self._http.post("/auth/token", json=self._login)
        if answer.is_client_error:
            raise ConfigurationError(f"Airflow at {self.url} refuses the login of {self._login['username']!r}")
        if answer.is_server_error:
            raise RetryLaterError(f"the login at {self.url} failed with {answer.status_code}")
        return str(answer.json()["access_token"])

    def _send(
        self, method: str, path: str, query: Mapping[str, Any] | None, body: Mapping[str, Any] | None
    ) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self._token}"}
        return self._http.request(method, f"/api/v2/{path}", params=query, json=body, headers=headers)
