"""Commands about answers: what similarity threshold a false-hit budget allows."""

from pathlib import Path
from typing import Annotated

import typer

from warmup_tasks.cli.common import Json, errors_for_people, show
from warmup_tasks.errors import ConfigurationError


def register(app: typer.Typer) -> None:
    """Add this file's commands."""
    app.command()(threshold)


def threshold(
    pairs: Annotated[Path, typer.Argument(help="JSON lines with `question`, `other` and `is_same`.")],
    budget: Annotated[float, typer.Option(min=0.0001, max=0.5, help="False hits over hits, at most.")] = 0.01,
    judged: Annotated[float | None, typer.Option("--judge", min=0, max=1, help="Judge this threshold only.")] = None,
    is_json: Json = False,
) -> None:
    """Choose `similarity_threshold` on labelled pairs of questions, or judge one; fails where no budget is kept."""
    from warmup_tasks.demand.embedder import HashingEmbedder
    from warmup_tasks.demand.false_hits import choose_threshold, judge, read_pairs, score

    with errors_for_people():
        scored = score(read_pairs(pairs), HashingEmbedder())
        found = choose_threshold(scored, budget) if judged is None else judge(scored, judged)
        if found is None:
            raise ConfigurationError(
                f"no similarity_threshold keeps false hits within {budget:.1%} of the hits on these "
                f"{len(scored.cosine)} pairs; leave it at 0.999, where equal wordings alone share an answer, or label "
                "more pairs"
            )
        if refusal := found.refusal(budget):
            raise ConfigurationError(refusal)
    figures = {name: value for name, value in found._asdict().items() if name != "threshold"}
    figures |= {"similarity_threshold": found.threshold, "false_hit_share": found.false_hit_share}
    show(figures, is_json)
