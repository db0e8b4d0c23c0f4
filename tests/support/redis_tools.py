"""Debian's redis-tools: the server's own benchmark, and a server that speaks TLS.

Its one program checks a database under one name and is the whole server under another, sentinel included. Where it is
missing and this process may, it is installed; else the message says what to install.
"""

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

from warmup_tasks.errors import ConfigurationError

HINT = "install it with `apt-get install redis-tools`"
INSTALL_DEADLINE_S = 120.0
_SERVER_UNDER_OTHER_NAME = "redis-check-rdb"


@cache
def redis_tool(name: str) -> str:
    """Return the path of a program of redis-tools.

    Raises:
        ConfigurationError: it is not there and cannot be installed from here.
    """
    found = shutil.which(name)
    if found is None and shutil.which("apt-get") and os.geteuid() == 0:
        _install()
        found = shutil.which(name)
    if found is None:
        raise ConfigurationError(f"{name} is not installed: {HINT}")
    return found


def tls_server(folder: Path) -> str:
    """Return a Redis server that was built with TLS; ``folder`` gets a link to it where it has another name.

    Raises:
        ConfigurationError: there is none, and none can be installed from here.
    """
    link = folder / "redis-server"
    if not link.exists():
        link.symlink_to(shutil.which("redis-server") or redis_tool(_SERVER_UNDER_OTHER_NAME))
    return str(link)


def _install() -> None:
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for words in (["update"], ["install", "--yes", "--no-install-recommends", "redis-tools"]):
        try:
            subprocess.run(
                ["apt-get", "--quiet", *words], env=env, capture_output=True, check=True, timeout=INSTALL_DEADLINE_S
            )
        except (subprocess.SubprocessError, OSError) as error:
            raise ConfigurationError(f"redis-tools could not be installed ({type(error).__name__}): {HINT}") from None
