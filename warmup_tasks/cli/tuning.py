"""The command that tunes: over a site's lake for its next night, or over any log before there is a site."""

import tempfile
from pathlib import Path
from time import monotonic
from typing import Annotated, Any

import typer

from warmup_tasks import nightly
from warmup_tasks.cli.common import (
    Format,
    Json,
    Progress,
    Wishes,
    errors_for_people,
    out,
    print_json,
    progress,
    values_of,
)
from warmup_tasks.errors import ConfigurationError
from warmup_tasks.runs import Run, wishes_of
from warmup_tasks.settings import Site


def register(app: typer.Typer) -> None:
    """Add this file's command."""
    app.command()(tune)


def tune(
    log: Annotated[str, typer.Option(help="Log to try settings on; empty tunes the site's lake.")] = "",
    log_format: Format = "auto",
    as_of: Annotated[str, typer.Option("--as-of", help="Tune on what came before; empty: all of it.")] = "",
    trials: Annotated[int, typer.Option(min=1, help="Settings to try for each traffic class.")] = 60,
    time_s: Annotated[float, typer.Option("--time", min=1, help="At most so long, in s, for all classes.")] = 300,
    capacity: Annotated[
        int | None, typer.Option(min=1, help="With --log: tokens that a replica's cache holds (vLLM prints it).")
    ] = None,
    replicas: Annotated[int, typer.Option(min=1, help="With --log: how many replicas share the traffic.")] = 1,
    base_ms: Annotated[
        float | None, typer.Option(min=0, help="With --log: time to first token of a short prompt; empty: fitted.")
    ] = None,
    ms_per_token: Annotated[
        float | None, typer.Option(min=0, help="With --log: prefill of one more token; empty: fitted to the log.")
    ] = None,
    slo_ms: Annotated[float, typer.Option(min=1, help="A P95 above it for 30 s is a surge that counts.")] = 1000.0,
    plot: Annotated[Path | None, typer.Option(help="Write a page with plots here, such as tuning.html.")] = None,
    wishes: Wishes = None,
    is_json: Json = False,
) -> None:
    """Find the golden parameters that serve a log's traffic best, in simulated time; no engine is asked.

    Each traffic class (model × adapter × request type) is tried on the busiest hour of its older traffic; what does
    better than the last values on the newest traffic, too, is kept. A low P95 counts, and tokens spent in vain cost;
    at most 5.2 % of the warm-ups may be false, and recall may not fall.

    On a site, new values are published, and the next run takes them; `replicas` of the last survey say how large and
    fast the caches are. With `--log` nothing is kept but the page:

        warmup tune --log gateway.jsonl --capacity 400000 --plot tuning.html
    """
    from warmup_tasks.lake import Lake
    from warmup_tasks.reporting.tables import tuning_tables
    from warmup_tasks.reporting.tuning import tuning_of
    from warmup_tasks.tuning.nightly import Budget
    from warmup_tasks.tuning.nightly import tune as tune_classes

    asked = {"as_of": as_of or None, "log": log, "log_format": log_format, **values_of(wishes)}
    line_ms = _line(base_ms, ms_per_token)
    with (
        errors_for_people(),
        progress(is_json) as bar,
        tempfile.TemporaryDirectory(prefix="warmup-tune-") as folder,
    ):
        if log:
            lake = Lake(folder)
            run, name_of, served = _log_alone(lake, asked, capacity, replicas, line_ms, bar("reading"))
        else:
            site = Site.from_environment()
            lake = Lake(site.lake_uri)
            run, name_of, served = nightly.tuning_of_site(site, *wishes_of(asked, "options"))
        budget = Budget(time_s, monotonic, trials)
        account = tune_classes(lake, run, name_of, served, budget, slo_ms=slo_ms, progress=bar("trials"))
        tuning = tuning_of(account)
        if plot is not None:
            from warmup_tasks.reporting.report import write_tuning

            write_tuning(tuning, tuning_tables(lake, run), plot)
    if is_json:
        print_json({"run_id": run.run_id, "as_of": run.as_of, **tuning.model_dump(mode="json")})
    else:
        from warmup_tasks.reporting.console import print_tuning

        print_tuning(tuning, out)
        if plot is not None:
            out.print(f"\n[bold]{plot}[/] shows it in full.", highlight=False)


def _line(base_ms: float | None, ms_per_token: float | None) -> tuple[float, float] | None:
    if (base_ms is None) != (ms_per_token is None):
        raise typer.BadParameter("give both --base-ms and --ms-per-token, or neither")
    return None if base_ms is None or ms_per_token is None else (base_ms, ms_per_token)


def _log_alone(
    lake: Any,
    asked: dict[str, Any],
    capacity: int | None,
    replicas: int,
    line_ms: tuple[float, float] | None,
    reading: Progress,
) -> tuple[Run, Any, Any]:
    from warmup_tasks.tuning.rehearsal import any_name, replicas_of_log

    if capacity is None:
        raise ConfigurationError(
            "--capacity: say how many tokens a replica's cache holds; vLLM prints it at start as `GPU KV cache size`"
        )
    request, explicit = wishes_of(asked, "options")
    nightly.read_log(lake.uri, request, reading)
    served, end = replicas_of_log(lake, capacity, count=replicas, line_ms=line_ms)
    return nightly.begin(lake.uri, request, explicit, end), any_name, [served]
