"""The connection of a pipeline to the queue.

Holds `Connection` and `PipelineError`. Always true: a connection can be sent to Spark's
tasks, and holds no secret. The token comes from a file, or from the environment of the
process that connects: the file that FOQS_TOKEN_FILE names, else FOQS_TOKEN.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final

from foqs_client.credentials import Tls
from foqs_client.errors import FoqsError
from foqs_client.sync_client import SyncClient

TIMEOUT_MS: Final = 100_000
"""The time of a call with its retries. A host that is replaced is back before it ends."""


class PipelineError(Exception):
    """The pipeline failed. The text is one sentence for its user: what is wrong, where, and what to do."""


@dataclass(slots=True, frozen=True)
class Connection:
    """The hosts and the namespace. Files are on the machine that connects."""

    address: str
    namespace: str = "default"
    token_file: str | None = None
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    timeout_ms: int = TIMEOUT_MS

    def open_client(self) -> SyncClient:
        """Return a client. Raises PipelineError if a file or the address cannot be used."""
        token_file = self.token_file or os.environ.get("FOQS_TOKEN_FILE") or None
        token = None if token_file else os.environ.get("FOQS_TOKEN") or None
        files = self.ca_file, self.cert_file, self.key_file
        try:
            return SyncClient(
                self.address,
                namespace=self.namespace,
                timeout_ms=self.timeout_ms,
                token=token,
                token_file=token_file,
                tls=Tls(*files) if any(files) else None,
            )
        except FoqsError as error:
            raise PipelineError(f"the hosts cannot be called: {error}") from None

    def spark_options(self) -> dict[str, str]:
        """Return the options of Spark's source and sink `foqs`."""
        given = {
            "url": self.address,
            "namespace": self.namespace,
            "token_file": self.token_file,
            "ca_file": self.ca_file,
            "cert_file": self.cert_file,
            "key_file": self.key_file,
            "timeout_ms": str(self.timeout_ms),
        }
        return {name: value for name, value in given.items() if value is not None}
