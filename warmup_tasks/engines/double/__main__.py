"""Start a double: ``python -m warmup_tasks.engines.double --port 8000 [--config double.yaml] [flags]``."""

import asyncio
import contextlib
import os
import socket

import uvicorn

from warmup_tasks.engines.double.config import DoubleConfig, parse_config
from warmup_tasks.engines.double.server import make_app

_PARENT_CHECK_S = 1.0
_SHUTDOWN_S = 1


async def serve(config: DoubleConfig) -> None:
    """Serve until the process is told to end."""
    server = uvicorn.Server(
        uvicorn.Config(
            make_app(config),
            host=config.host,
            port=config.port,
            access_log=False,
            log_level="error",
            timeout_graceful_shutdown=_SHUTDOWN_S,
        )
    )
    watching = asyncio.ensure_future(_end_with_parent(server)) if config.exit_with_parent else None
    await server.serve(sockets=None if config.fd is None else [socket.socket(fileno=config.fd)])
    if watching is not None:
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching


async def _end_with_parent(server: uvicorn.Server) -> None:
    parent = os.getppid()
    while not server.should_exit:
        await asyncio.sleep(_PARENT_CHECK_S)
        server.should_exit = os.getppid() != parent


def main() -> None:
    """Read the command line and serve."""
    asyncio.run(serve(parse_config()))


if __name__ == "__main__":
    main()
