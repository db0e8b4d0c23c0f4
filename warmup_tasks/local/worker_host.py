"""The name under which a worker of a local site appears as the host of its tasks; Airflow calls it.

Nothing else lives here: it is loaded by every process of Airflow.
"""

import os
import socket


def worker_host() -> str:
    """Return the worker's own name where it has one: several workers on one machine would look alike otherwise."""
    return os.environ.get("WARMUP_WORKER_NAME") or socket.getfqdn()
