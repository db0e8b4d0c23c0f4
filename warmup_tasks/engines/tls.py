"""TLS towards an engine, from the files that the fleet file names. Nothing here opens a connection."""

import ssl

from warmup_tasks.errors import ConfigurationError
from warmup_tasks.fleet_file import ReplicaSpec


def tls_context(replica: ReplicaSpec) -> ssl.SSLContext | bool:
    """Return how an engine's certificate is checked; True is as the system trusts.

    Raises:
        ConfigurationError: a file cannot be read, or does not hold what it should.
    """
    if replica.tls is None:
        return True
    try:
        context = ssl.create_default_context(cafile=replica.tls.ca_path)
        if replica.tls.cert_path is not None:
            context.load_cert_chain(replica.tls.cert_path, replica.tls.key_path)
    except OSError as error:  # ssl.SSLError is one, too
        raise ConfigurationError(f"replica {replica.name}: tls: {error}") from None
    return context
