"""``python -m warmup_tasks.agent``: the agent without the rest of the command line, so that it is up at once."""

import argparse
import logging
import os
import sys
from collections.abc import Sequence

from warmup_tasks.agent.app import serve
from warmup_tasks.engines.discovery import discover
from warmup_tasks.errors import WarmupError
from warmup_tasks.fleet_file import FleetFile, load_fleet


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the agent; return the exit status: 0 after a clean stop, 2 when it cannot run as told."""
    parser = argparse.ArgumentParser(
        prog="warmup agent", description="Publish the replicas' epochs and answer readiness probes, until stopped."
    )
    parser.add_argument("--port", type=int, default=9400)
    parser.add_argument("--host", default="127.0.0.1", help="0.0.0.0 in a container")
    parser.add_argument("--poll-s", type=float, default=2.0, help="pause between two looks at a replica")
    parser.add_argument("--fleet", default=os.environ.get("WARMUP_FLEET"), help="fleet file; default $WARMUP_FLEET")
    parser.add_argument("--redis-url", default=os.environ.get("WARMUP_REDIS_URL"), help="default $WARMUP_REDIS_URL")
    parser.add_argument(
        "--lake",
        default=os.environ.get("WARMUP_LAKE"),
        help="where tuned thresholds are looked up; default $WARMUP_LAKE",
    )
    told = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    for chatty in ("httpx", "uvicorn.error"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    if not told.fleet or not told.redis_url:
        parser.error(
            "name the fleet file and the Redis URL: --fleet and --redis-url, or WARMUP_FLEET, WARMUP_REDIS_URL"
        )
    try:
        where = {"port": told.port, "poll_s": told.poll_s, "host": told.host, "lake_uri": told.lake}

        def look() -> FleetFile:
            return discover(load_fleet(told.fleet))

        serve(look(), told.redis_url, look=look, **where)
    except WarmupError as error:
        parser.exit(2, f"{error}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
