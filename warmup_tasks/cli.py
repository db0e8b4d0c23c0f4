"""The command ``warmup``: the steps of a night by hand, over the same library calls as the DAG.

Here live arguments, help texts and what is printed; every command is a few calls into ``nightly``, ``local`` or the
stores. Heavy libraries load only in the command that needs them.
"""

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress

from warmup_tasks import __version__, nightly
from warmup_tasks.errors import WarmupError
from warmup_tasks.parameters import load_parameters
from warmup_tasks.runs import Run
from warmup_tasks.settings import RunRequest, Site, load_fleet, validate

app = typer.Typer(
    name="warmup",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_show_locals=False,
    help="Decide from request logs what will be asked for, load it ahead, prove that it is loaded, mark it ready.\n\n"
    "`warmup run` does everything on this machine. The other commands work on a site: set `WARMUP_LAKE`, "
    "`WARMUP_REDIS_URL` and `WARMUP_FLEET` (`warmup run --keep` prints those of the local one).",
)
out, err = Console(), Console(stderr=True)

Log = Annotated[str, typer.Option("--log", help="File, folder or glob with request logs; empty takes WARMUP_LOG.")]
Format = Annotated[str, typer.Option("--format", help="Log format, or `auto`.")]
AsOf = Annotated[str, typer.Option("--as-of", help="Plan for the time from here on, ISO 8601 with a zone.")]
Param = Annotated[list[str] | None, typer.Option("--param", help="Golden parameter as name=value; may be repeated.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]


@contextmanager
def _errors_for_people() -> Iterator[None]:
    """Turn the library's errors into one message and exit code 1: a stack trace helps nobody who mistyped a path."""
    try:
        yield
    except WarmupError as error:
        err.print(f"[bold red]{type(error).__name__.removesuffix('Error')}[/]: {error}", highlight=False)
        raise typer.Exit(1) from None


@contextmanager
def _progress(is_json: bool) -> Iterator[Callable[[str], Callable[[int, int], None]]]:
    """Yield a factory of progress callbacks ``(done, total)``, one bar a name; silent for machines."""
    with Progress(console=err, disable=is_json or not err.is_terminal, transient=True) as bars:

        def bar(name: str) -> Callable[[int, int], None]:
            task = bars.add_task(name, total=None)
            return lambda done, total: bars.update(task, completed=done, total=total)

        yield bar


def _show(summary: dict[str, Any], is_json: bool) -> None:
    if is_json:
        out.print_json(json.dumps(summary, default=str))
    else:
        from warmup_tasks.reporting.console import print_mapping

        print_mapping(summary, out)


def _parameters(pairs: list[str] | None) -> dict[str, Any]:
    values = dict(pair.partition("=")[::2] for pair in pairs or [])
    return {name: value for name, value in values.items() if value != ""}


def _run_of(as_of: str, log: str, log_format: str, param: list[str] | None, **wishes: Any) -> Run:
    asked = {"as_of": as_of or None, "log": log, "log_format": log_format, **wishes}
    return Run.of(validate(asked, RunRequest, "options"), parameters=load_parameters(_parameters(param)))


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        out.print(__version__)
        raise typer.Exit


@app.command("sample-log")
def sample_log(
    folder: Annotated[Path, typer.Argument(help="Where the log files go; created.")],
    seed: Annotated[int, typer.Option(help="Same seed, same bytes.")] = 7,
    days: Annotated[int, typer.Option(min=1, help="Days of history before the plan's time.")] = 3,
    scale: Annotated[float, typer.Option(min=0.01, help="Traffic, 1.0 being about 5,000 requests.")] = 1.0,
    is_json: Json = False,
) -> None:
    """Write a realistic request log: tenants, tools, sessions, adapters, feedback, and a few bad rows."""
    from warmup_tasks.sources.sample_log import DEFAULT_AS_OF, write_sample_log

    with _errors_for_people():
        written = write_sample_log(folder, seed=seed, days=days, scale=scale, end=DEFAULT_AS_OF)
        _show(written.model_dump(mode="json"), is_json)


@app.command()
def extract(log: Log = "", log_format: Format = "auto", is_json: Json = False) -> None:
    """Read request logs into the lake and say what could not be used, and why."""
    from warmup_tasks.lake import Lake
    from warmup_tasks.sources.extract import extract as read_log

    with _errors_for_people(), _progress(is_json) as bar:
        site = Site.from_environment()
        summary = read_log(Lake(site.lake_uri), log or site.default_log, log_format, progress=bar("reading"))
    _show(summary.model_dump(mode="json"), is_json)


@app.command()
def plan(as_of: AsOf, log: Log = "", log_format: Format = "auto", param: Param = None, is_json: Json = False) -> None:
    """Survey the replicas and choose what to warm: shows items, capacity use and cost; warms nothing."""
    with _errors_for_people():
        site, run = Site.from_environment(), _run_of(as_of, log, log_format, param)
        profile = nightly.profile(site, run)
        _show({"run_id": run.run_id, "profile": profile, "plan": nightly.plan(site, run)}, is_json)


@app.command()
def warm(as_of: AsOf, log: Log = "", log_format: Format = "auto", param: Param = None, is_json: Json = False) -> None:
    """Carry out the plan of the same options: cold twins first, then the waves in order."""
    with _errors_for_people():
        site, run = Site.from_environment(), _run_of(as_of, log, log_format, param)
        _show(nightly.twins_and_waves(site, run), is_json)


@app.command("validate")
def validate_run(
    as_of: AsOf, log: Log = "", log_format: Format = "auto", param: Param = None, is_json: Json = False
) -> None:
    """Probe what was warmed, hottest first, and publish marks for what is proved."""
    with _errors_for_people():
        site, run = Site.from_environment(), _run_of(as_of, log, log_format, param)
        _show(nightly.probes_and_marks(site, run), is_json)


@app.command()
def ready(
    model: Annotated[str, typer.Option(help="Served model name.")],
    replica: Annotated[str, typer.Option(help="Replica name from the fleet file.")],
    is_json: Json = False,
) -> None:
    """Say whether a replica is warm for a model. Exit code 0: ready; 3: not ready."""
    from warmup_tasks.serving import connect
    from warmup_tasks.serving.readiness import is_ready

    with _errors_for_people():
        verdict, reason = is_ready(connect(Site.from_environment().redis_url), model, replica)
    if is_json:
        out.print_json(json.dumps({"ready": verdict, "reason": reason}))
    else:
        out.print(f"{'ready' if verdict else 'not ready'}: {reason}", highlight=False)
    raise typer.Exit(0 if verdict else 3)


@app.command()
def status(is_json: Json = False) -> None:
    """Show every replica of the fleet: epoch, health, and what is ready on it."""
    with _errors_for_people():
        _show(nightly.status(Site.from_environment()), is_json)


@app.command()
def invalidate(
    model: Annotated[str | None, typer.Option(help="Everything of this model, its adapters included.")] = None,
    weights_revision: Annotated[str | None, typer.Option("--from", help="Only this revision of --model.")] = None,
    adapter: Annotated[str | None, typer.Option(help="Everything of this adapter, not its base model.")] = None,
    embedder: Annotated[str | None, typer.Option(help="Everything embedded by this embedder.")] = None,
    tenant: Annotated[str | None, typer.Option(help="Everything of this tenant.")] = None,
    replica: Annotated[str | None, typer.Option(help="The marks on this replica.")] = None,
    item: Annotated[str | None, typer.Option(help="One item by its id.")] = None,
    is_dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would fall.")] = False,
    is_json: Json = False,
) -> None:
    """Void marks first, then values, of everything that all given options agree with."""
    from dataclasses import asdict

    from warmup_tasks.serving import connect
    from warmup_tasks.serving.invalidate import Invalidator
    from warmup_tasks.serving.namespaces import Reach

    asked = {
        "model": model,
        "weights_revision": weights_revision,
        "adapter": adapter,
        "embedder": embedder,
        "tenant": tenant,
        "replica": replica,
        "item_id": item,
    }
    with _errors_for_people(), connect(Site.from_environment().redis_url) as redis:
        reach, events = validate(asked, Reach, "options"), Invalidator(redis)
        _show(asdict(events.preview(reach) if is_dry_run else events.invalidate(reach)), is_json)


@app.command()
def agent(
    port: Annotated[int, typer.Option(help="Port of the readiness endpoint.")] = 9400,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 in a container.")] = "127.0.0.1",
    poll_s: Annotated[float, typer.Option(help="Pause between two looks at a replica, in s.")] = 2.0,
) -> None:
    """Publish the replicas' epochs and answer readiness probes, until stopped."""
    from warmup_tasks.agent.app import serve

    with _errors_for_people():
        site = Site.from_environment()
        serve(load_fleet(site.fleet_path), site.redis_url, port=port, host=host, poll_s=poll_s)


@app.command()
def run(
    log: Annotated[str, typer.Option(help="Log to run over; empty makes the sample log.")] = "",
    log_format: Format = "auto",
    as_of: Annotated[str, typer.Option(help="Plan for the time from here on; empty chooses one from the log.")] = "",
    engine: Annotated[str, typer.Option(help="`double`, or `vllm` (real, on this CPU).")] = "double",
    engine_urls: Annotated[str, typer.Option(help="Your own vLLM servers instead, separated by commas.")] = "",
    param: Param = None,
    folder: Annotated[Path, typer.Option("--out", help="Where results go.")] = Path("out"),
    is_kept: Annotated[
        bool, typer.Option("--keep", help="Leave everything running until Ctrl-C; print the site.")
    ] = False,
    is_json: Json = False,
) -> None:
    """Run a whole night on this machine: Redis, engines, agent and an Airflow run, started and stopped here."""
    from warmup_tasks.local.night import LocalNight

    with _errors_for_people():
        asked_as_of = datetime.fromisoformat(as_of) if as_of else None
        night = LocalNight(log, log_format, asked_as_of, engine, engine_urls, _parameters(param))
        summary = night.run(folder, err, _until_interrupted if is_kept else None)
    if is_json:
        out.print_json(summary.model_dump_json())
    else:
        from warmup_tasks.reporting.console import print_summary

        print_summary(summary, out)
        out.print(f"\n[bold]{folder / 'run' / 'report.html'}[/] shows it in full.", highlight=False)


def _until_interrupted(site: Site, *_: object) -> None:
    """Print the site's variables for another shell, then wait for Ctrl-C."""
    for name, value in site.to_environment().items():
        out.print(f"export {name}={value}", highlight=False, soft_wrap=True)
    err.print("everything keeps running; Ctrl-C stops it")
    with suppress(KeyboardInterrupt):
        signal.pause()


def main() -> None:
    """Entry point of the ``warmup`` command."""
    app()


if __name__ == "__main__":
    main()
