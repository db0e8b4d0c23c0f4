"""``python -m warmup_tasks.cli`` is ``warmup``."""

from warmup_tasks.cli import main

main()
