"""The client of a job.

Holds `ClientOptions` and `make_client`. Always true: without a token option, the token
comes from the environment of the process that connects: the file that FOQS_TOKEN_FILE
names, else FOQS_TOKEN.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Protocol, TypeVar

from foqs_client.credentials import Tls
from foqs_client.errors import FoqsError
from foqs_client.spark.job_error import JobError

C = TypeVar("C")


class ClientOptions(Protocol):
    """The options by which a job connects. `token` is a secret."""

    @property
    def url(self) -> str: ...
    @property
    def token(self) -> str | None: ...
    @property
    def token_file(self) -> str | None: ...
    @property
    def ca_file(self) -> str | None: ...
    @property
    def cert_file(self) -> str | None: ...
    @property
    def key_file(self) -> str | None: ...
    @property
    def timeout_ms(self) -> int: ...


def make_client(make: Callable[..., C], options: ClientOptions, namespace: str, error: type[JobError]) -> C:
    """Return a client of the namespace.

    Args:
        make: `Client` or `SyncClient`.
        error: the class of the error to raise if a file or an option cannot be used.
    """
    token, token_file = options.token, options.token_file
    if token is None and token_file is None:
        token_file = os.environ.get("FOQS_TOKEN_FILE") or None
        if token_file is None:
            token = os.environ.get("FOQS_TOKEN") or None
    files = options.ca_file, options.cert_file, options.key_file
    try:
        return make(
            options.url,
            namespace=namespace,
            timeout_ms=options.timeout_ms,
            token=token,
            token_file=token_file,
            tls=Tls(*files) if any(files) else None,
        )
    except FoqsError as failure:
        raise error(f"the hosts cannot be called: {failure}") from None
