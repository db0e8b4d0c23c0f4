"""Commands about request logs: make one, look into one, read one, replay one."""

from pathlib import Path
from typing import Annotated, Any

import typer

from warmup_tasks import nightly
from warmup_tasks.cli.common import (
    Format,
    Json,
    Log,
    Wishes,
    errors_for_people,
    out,
    print_json,
    progress,
    show,
    values_of,
)
from warmup_tasks.errors import ConfigurationError
from warmup_tasks.runs import wishes_of
from warmup_tasks.settings import RunRequest, Site


def _flag(field: str) -> Any:
    """Return a field of a run's form as an option of its own."""
    return typer.Option(f"--{field.replace('_', '-')}", help=RunRequest.model_fields[field].description)


TokensPerBlock = Annotated[int | None, _flag("tokens_per_block")]
VocabularySize = Annotated[int | None, _flag("vocabulary_size")]
MaxPromptTokens = Annotated[int | None, _flag("max_prompt_tokens")]


def register(app: typer.Typer) -> None:
    """Add this file's commands."""
    app.command("sample-log")(sample_log)
    app.command()(inspect)
    app.command()(extract)
    app.command()(replay)


def sample_log(
    folder: Annotated[Path, typer.Argument(help="Where the log files go; created.")],
    seed: Annotated[int, typer.Option(help="Same seed, same bytes.")] = 7,
    days: Annotated[int, typer.Option(min=1, help="Days of history before the plan's time.")] = 3,
    scale: Annotated[float, typer.Option(min=0.01, help="Traffic, 1.0 being about 5,000 requests.")] = 1.0,
    is_json: Json = False,
) -> None:
    """Write a realistic request log: tenants, tools, sessions, adapters, feedback, and a few bad rows."""
    from warmup_tasks.sources.sample_log import DEFAULT_AS_OF, write_sample_log

    with errors_for_people():
        written = write_sample_log(folder, seed=seed, days=days, scale=scale, end=DEFAULT_AS_OF)
        show(written.model_dump(mode="json"), is_json)


def inspect(
    log: Annotated[str, typer.Argument(help="File, folder or glob with request logs.")],
    log_format: Format = "auto",
    tokens_per_block: TokensPerBlock = None,
    vocabulary_size: VocabularySize = None,
    max_prompt_tokens: MaxPromptTokens = None,
    wishes: Wishes = None,
    is_json: Json = False,
) -> None:
    """Show what a log holds, the first problems, and what to change at its source to get more."""
    from warmup_tasks.reporting.inspection import print_inspection
    from warmup_tasks.sources.inspection import inspect as look_into

    with errors_for_people(), progress(is_json) as bar:
        asked, _ = wishes_of(
            {**_derivation(tokens_per_block, vocabulary_size, max_prompt_tokens), **values_of(wishes)}, "options"
        )
        found = look_into(log, log_format, options=nightly.read_options(asked), progress=bar("reading"))
    if is_json:
        print_json(found.model_dump(mode="json"))
    else:
        print_inspection(found, out)


def extract(
    log: Log = "",
    log_format: Format = "auto",
    tokens_per_block: TokensPerBlock = None,
    vocabulary_size: VocabularySize = None,
    max_prompt_tokens: MaxPromptTokens = None,
    wishes: Wishes = None,
    is_json: Json = False,
) -> None:
    """Read request logs into the lake and say what could not be used, and why."""
    with errors_for_people(), progress(is_json) as bar:
        site = Site.from_environment()
        asked, _ = wishes_of(
            {
                "log": log or site.default_log,
                "log_format": log_format,
                **_derivation(tokens_per_block, vocabulary_size, max_prompt_tokens),
                **values_of(wishes),
            },
            "options",
        )
        summary = nightly.read_log(site.lake_uri, asked, bar("reading"))
    show(summary, is_json)


def replay(
    capacity: Annotated[str, typer.Option(help="Cache sizes in blocks, separated by commas.")],
    log: Log = "",
    log_format: Format = "auto",
    replicas: Annotated[int, typer.Option(min=1, help="Replicas behind a router; capacities are of each.")] = 1,
    block_tokens: Annotated[int, typer.Option(min=1, help="Block size for prompts; hashes bring their own.")] = 16,
    wishes: Wishes = None,
    is_json: Json = False,
) -> None:
    """Replay a log against caches of given sizes: exact prefix-run hit ratios of LRU, no engine needed."""
    import tempfile

    from warmup_tasks.lake import Lake
    from warmup_tasks.replay.account import replay_account

    with errors_for_people(), progress(is_json) as bar, tempfile.TemporaryDirectory(prefix="warmup-replay-") as folder:
        try:
            capacities = [int(size) for size in capacity.split(",")]
        except ValueError:
            raise ConfigurationError(f"--capacity {capacity}: write whole numbers separated by commas") from None
        asked, _ = wishes_of({"log": log, "log_format": log_format, **values_of(wishes)}, "options")
        nightly.read_log(folder, asked, bar("reading"))
        account = replay_account(Lake(folder), capacities, block_tokens=block_tokens, replicas=replicas)
    show(account, is_json)


def _derivation(
    tokens_per_block: int | None, vocabulary_size: int | None, max_prompt_tokens: int | None
) -> dict[str, int]:
    """Return what was asked for of how prompts are derived from block hashes, by the names of a run's form."""
    asked = {
        "tokens_per_block": tokens_per_block,
        "vocabulary_size": vocabulary_size,
        "max_prompt_tokens": max_prompt_tokens,
    }
    return {name: value for name, value in asked.items() if value is not None}
