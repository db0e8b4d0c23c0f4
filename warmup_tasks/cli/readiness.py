"""Commands about what is ready now: ask, watch, look again, void, collect, and keep the agent running."""

from datetime import timedelta
from typing import Annotated, Any

import typer

from warmup_tasks import upkeep
from warmup_tasks.cli.common import Json, errors_for_people, out, print_json, show
from warmup_tasks.errors import ConfigurationError
from warmup_tasks.fleets import present_fleet
from warmup_tasks.settings import Site
from warmup_tasks.settings import validate as validated

NOT_READY = 3


def register(app: typer.Typer) -> None:
    """Add this file's commands."""
    for command in (ready, status, invalidate, recheck, collect, agent):
        app.command()(command)


def ready(
    model: Annotated[str, typer.Option(help="Served model name.")],
    replica: Annotated[str, typer.Option(help="Replica name from the fleet file.")],
    is_json: Json = False,
) -> None:
    """Say whether a replica is warm for a model. Exit code 0: ready; 3: not ready."""
    from warmup_tasks.serving import connect
    from warmup_tasks.serving.readiness import is_ready

    with errors_for_people():
        verdict, reason = is_ready(connect(Site.from_environment().redis_url), model, replica)
    if is_json:
        print_json({"ready": verdict, "reason": reason})
    else:
        out.print(f"{'ready' if verdict else 'not ready'}: {reason}", highlight=False)
    raise typer.Exit(0 if verdict else NOT_READY)


def status(is_json: Json = False) -> None:
    """Show every replica of the fleet: epoch, health, what is ready on it, and what its identity rests on."""
    with errors_for_people():
        show(upkeep.status(Site.from_environment()), is_json)


def invalidate(
    model: Annotated[str | None, typer.Option(help="Everything of this model, its adapters included.")] = None,
    weights_revision: Annotated[str | None, typer.Option("--from", help="Only this revision of --model.")] = None,
    successor: Annotated[str | None, typer.Option("--to", help="The revision that comes instead; left alone.")] = None,
    adapter: Annotated[str | None, typer.Option(help="Everything of this adapter, not its base model.")] = None,
    embedder: Annotated[str | None, typer.Option(help="Everything embedded by this embedder.")] = None,
    lexicon: Annotated[str | None, typer.Option(help="Everything embedded with this lexicon version.")] = None,
    tenant: Annotated[str | None, typer.Option(help="Everything of this tenant.")] = None,
    replica: Annotated[str | None, typer.Option(help="The marks on this replica.")] = None,
    item: Annotated[
        str | None, typer.Option(help="One item by its id; a tombstone keeps it out of later plans.")
    ] = None,
    is_dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would fall.")] = False,
    is_json: Json = False,
) -> None:
    """Void marks first, then values, of everything that all given options agree with, and of what depends on it."""
    from warmup_tasks.serving.namespaces import Reach

    asked = {
        "model": model,
        "weights_revision": weights_revision,
        "adapter": adapter,
        "embedder": embedder,
        "lexicon_version": lexicon,
        "tenant": tenant,
        "replica": replica,
        "item_id": item,
    }
    with errors_for_people():
        if successor is not None and weights_revision in (None, successor):
            raise ConfigurationError("--to: say with --from which other revision falls")
        reach = validated(asked, Reach, "options")
        show(upkeep.invalidate(Site.from_environment(), reach, is_dry_run=is_dry_run), is_json)


def recheck(
    max_prefixes: Annotated[int | None, typer.Option(min=0, help="Ask for so many a replica; empty: all.")] = None,
    replica: Annotated[list[str] | None, typer.Option(help="Only this replica; may be repeated.")] = None,
    is_json: Json = False,
) -> None:
    """Look again before the peak: renew the marks that still hold on replicas, void the others."""
    with errors_for_people():
        show(upkeep.recheck(Site.from_environment(), max_prefixes, replica), is_json)


def collect(
    older_than: Annotated[str, typer.Option(help="Age in days, such as 14d.")] = "14d",
    is_dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would go.")] = False,
    is_json: Json = False,
) -> None:
    """Remove what nobody needs any more: old runs in the lake, undeclared adapter entries, empty namespaces."""
    with errors_for_people():
        number = older_than.removesuffix("d")
        if not number.isdecimal():
            raise ConfigurationError(f"--older-than: {older_than!r} is no number of days; write for instance 14d")
        show(upkeep.collect(Site.from_environment(), timedelta(days=int(number)), is_dry_run=is_dry_run), is_json)


def agent(
    port: Annotated[int, typer.Option(help="Port of the readiness endpoint.")] = 9400,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 in a container.")] = "127.0.0.1",
    poll_s: Annotated[float, typer.Option(help="Pause between two looks at a replica, in s.")] = 2.0,
) -> None:
    """Publish the replicas' epochs and answer readiness probes, until stopped."""
    from warmup_tasks.agent.app import serve

    with errors_for_people():
        site = Site.from_environment()
        where: dict[str, Any] = {"port": port, "host": host, "poll_s": poll_s, "lake_uri": site.lake_uri}
        serve(present_fleet(site), site.redis_url, look=lambda: present_fleet(site), **where)
