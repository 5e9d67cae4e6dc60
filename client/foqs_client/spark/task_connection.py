"""How a task, or the driver, reaches the hosts.

Holds `connect`. Always true: a token that no option gives is looked for where the
connection is made: the file that FOQS_TOKEN_FILE names, else FOQS_TOKEN. Knows
nothing of rows.
"""

from __future__ import annotations

import os

from foqs_client.client import Client
from foqs_client.credentials import Tls
from foqs_client.errors import FoqsError
from foqs_client.spark.options import SinkOptions
from foqs_client.spark.sink_error import SinkError


def open_client(options: SinkOptions, namespace: str) -> Client:
    """A client of the namespace. Raises SinkError where a file or an option cannot be used."""
    token, token_file = options.token, options.token_file
    if token is None and token_file is None:
        token_file = os.environ.get("FOQS_TOKEN_FILE") or None
        if token_file is None:
            token = os.environ.get("FOQS_TOKEN") or None
    files = options.ca_file, options.cert_file, options.key_file
    try:
        return Client(
            options.url,
            namespace=namespace,
            timeout_ms=options.timeout_ms,
            token=token,
            token_file=token_file,
            tls=Tls(*files) if any(files) else None,
        )
    except FoqsError as error:
        raise SinkError(f"the hosts cannot be called: {error}") from None
