"""Commands about what is ready now: ask, watch, void, and keep the agent running."""

from dataclasses import asdict
from typing import Annotated

import typer

from warmup_tasks import nightly
from warmup_tasks.cli.common import Json, errors_for_people, out, print_json, show
from warmup_tasks.settings import Site, load_fleet
from warmup_tasks.settings import validate as validated

NOT_READY = 3


def register(app: typer.Typer) -> None:
    """Add this file's commands."""
    for command in (ready, status, invalidate, agent):
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
    """Show every replica of the fleet: epoch, health, and what is ready on it."""
    with errors_for_people():
        show(nightly.status(Site.from_environment()), is_json)


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
    with errors_for_people(), connect(Site.from_environment().redis_url) as redis:
        reach, events = validated(asked, Reach, "options"), Invalidator(redis)
        show(asdict(events.preview(reach) if is_dry_run else events.invalidate(reach)), is_json)


def agent(
    port: Annotated[int, typer.Option(help="Port of the readiness endpoint.")] = 9400,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 in a container.")] = "127.0.0.1",
    poll_s: Annotated[float, typer.Option(help="Pause between two looks at a replica, in s.")] = 2.0,
) -> None:
    """Publish the replicas' epochs and answer readiness probes, until stopped."""
    from warmup_tasks.agent.app import serve

    with errors_for_people():
        site = Site.from_environment()
        serve(load_fleet(site.fleet_path), site.redis_url, port=port, host=host, poll_s=poll_s)
