"""The command that keeps a whole site alive on this machine, with Airflow's user interface, until it is stopped."""

import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from warmup_tasks.cli.common import Format, Json, err, errors_for_people, out, print_json

PORT = 8080


def register(app: typer.Typer) -> None:
    """Add this file's command."""
    app.command()(ui)


def ui(
    log: Annotated[str, typer.Option(help="Log to run over; empty makes the sample log, up to tonight.")] = "",
    log_format: Format = "auto",
    folder: Annotated[Path, typer.Option("--out", help="Where everything is written.")] = Path("out"),
    port: Annotated[int, typer.Option(help="Of the user interface; a free one where it is taken.")] = PORT,
    is_json: Json = False,
) -> None:
    """Start a real Airflow with all DAGs over two engine doubles, and print its address and login; Ctrl-C ends it.

    Everything else that it needs is started too: Postgres, Redis, the agent. Each start begins with an empty Airflow;
    the lake is kept.
    """
    from warmup_tasks.local.airflow_site import USER
    from warmup_tasks.local.live_site import LiveSite

    with errors_for_people(), _interruptible(), err.status("starting") as status:
        chosen = port if _is_free(port) else 0
        site = LiveSite(
            folder / "ui", datetime.now(UTC), log=log, log_format=log_format, port=chosen, tell=status.update
        )
        with site:
            status.update("waiting for the DAGs")
            dags = site.unpause()
            status.stop()
            shown: dict[str, Any] = {
                "url": site.airflow.url,
                "user": USER,
                "password": site.airflow.password,
                "dags": dags,
                "as_of": site.as_of.isoformat(),
                "agent": site.agent_url,
                "reports": str(site.folder / "airflow" / "warmup-reports"),
                "logs": str(site.folder / "airflow" / "parts"),
            }
            _show(shown, is_json)
            signal.pause()


def _show(shown: dict[str, Any], is_json: bool) -> None:
    if is_json:
        print_json(shown)
        return
    lines = {
        "Airflow": f"[bold]{shown['url']}[/]",
        "login": f"{shown['user']} / {shown['password']}",
        "DAGs": f"{', '.join(shown['dags'])} (all unpaused; tonight's run has begun)",
        "by hand": f"trigger nightly_warmup with as_of {shown['as_of']}: the log has requests before and after it",
        "reports": f"{shown['reports']}/<run>/report.html",
        "agent": f"{shown['agent']}/ready and /metrics",
        "output": shown["logs"],
    }
    for name, text in lines.items():
        out.print(f"{name:>8}  {text}", highlight=False, soft_wrap=True)
    err.print("everything keeps running; Ctrl-C ends it")


@contextmanager
def _interruptible() -> Iterator[None]:
    """End the block on the first Ctrl-C or SIGTERM, whatever it waits for; what it then ends is not interrupted."""

    def stop(*_: object) -> None:
        for number in before:
            signal.signal(number, signal.SIG_IGN)
        err.print("stopping")
        raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with suppress(KeyboardInterrupt):
            yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _is_free(port: int) -> bool:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True
