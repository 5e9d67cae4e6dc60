"""How a host connects to the others of its cluster, from its configuration.

Always true: nothing is connected before it is asked for. Knows nothing of what hosts tell each other.
"""

from __future__ import annotations

from collections.abc import Callable

from foqs.cluster.routing.port import Address
from foqs.options.config import Config, ConfigError
from foqs_client.connection_pool import ConnectionPool
from foqs_client.credentials import Tls, make_handshake, tls_connect
from foqs_client.errors import InvalidArgument


def peer_pool_opener(config: Config) -> Callable[[Address], ConnectionPool]:
    """How this host connects to the others of its tier, and shows who it is. Raises ConfigError."""
    cluster, server = config.cluster, config.server
    token_file = cluster.token_file if config.auth.enabled else ""
    try:
        connect = None
        if server.tls_cert_file:
            connect = tls_connect(Tls(cluster.ca_file or None, server.tls_cert_file, server.tls_key_file).context())
        greet = make_handshake(None, token_file or None, config.auth.enabled and not token_file)
    except InvalidArgument as error:
        key = "cluster.token_file" if error.field == "token_file" else "cluster.ca_file"
        raise ConfigError("", key, error.message, "see [cluster]") from None
    return lambda address: ConnectionPool([address], 1, connect, greet)
