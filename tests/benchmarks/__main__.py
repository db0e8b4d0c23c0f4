"""``python -m tests.benchmarks``: runs the benchmarks and keeps their JSON. ``make bench`` calls it."""

import argparse
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.benchmarks import harness
from warmup_tasks.errors import ConfigurationError
from warmup_tasks.reporting.svg import number

console = Console()


def main() -> int:
    """Run what was asked for; 2 when a name is unknown."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("--only", default="", help="names, separated by commas; empty runs all")
    parser.add_argument("--out", type=Path, default=Path("out/bench"), help="folder for the JSON")
    parser.add_argument("--scale", type=float, default=1.0, help="size of the input, 1.0 being the full one")
    asked = parser.parse_args()
    try:
        names = harness.chosen(asked.only)
    except ConfigurationError as error:
        console.print(f"[bold red]{error}[/]", highlight=False)
        return 2
    table = Table("benchmark", "figure", "value", "seconds", box=None, pad_edge=False, header_style="dim")
    for name in names:
        begun = time.perf_counter()
        with console.status(name), tempfile.TemporaryDirectory(prefix="warmup-bench-") as folder:
            found = harness.load(name).run(Path(folder), asked.scale)
        harness.keep(found, asked.out)
        took = f"{time.perf_counter() - begun:.1f}"
        for place, (figure, value) in enumerate(found.headline.items()):
            table.add_row(name if place == 0 else "", figure, number(value), took if place == 0 else "")
    console.print(table)
    console.print(f"\nJSON in {asked.out}", highlight=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
