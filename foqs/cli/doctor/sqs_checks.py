"""Doctor's checks of the SQS server, which serves programs written for Amazon SQS.

Always true: nothing is changed; a running host gets one request without a signature,
which it may refuse. No findings if the server is off.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Final

from foqs.catalog.file_catalog import FileCatalog
from foqs.catalog.port import CatalogError
from foqs.cli.listen_addresses import local_address, port_problem, sqs_url
from foqs.options.config import Config
from foqs.sqs.envelope import OVERHEAD_BYTES_MAX
from foqs.sqs.queue_attributes import MESSAGE_BYTES_MAX
from foqs.telemetry.findings import Finding
from foqs_contract.size_ceilings import PAYLOAD_BYTES_CEILING

_SUBJECT: Final = "SQS"
_TIMEOUT_S: Final = 2.0
_HEADERS: Final = {"X-Amz-Target": "AmazonSQS.ListQueues", "Content-Type": "application/x-amz-json-1.0"}


async def check_sqs(config: Config) -> list[Finding]:
    """Check the port, the longest message, and the namespaces of the accounts."""
    if config.server.sqs_port < 0:
        return []
    return [await _check_port(config), *_check_message_size(config), *await _check_accounts(config)]


async def _check_port(config: Config) -> Finding:
    """Check the port: free, served by FOQS, or in use by something else."""
    server = config.server
    problem = port_problem(server.host, server.sqs_port, "sqs_port")
    if problem is None:
        return Finding(_SUBJECT, "ok", f"{server.host}:{server.sqs_port} is free: no host is running there")
    try:
        program = await asyncio.to_thread(_serving_program, config)
    except HTTPException:
        return Finding(_SUBJECT, "bad", f"{sqs_url(config)} is not served by FOQS (it does not speak HTTP)", problem)
    except OSError as error:
        return Finding(_SUBJECT, "bad", f"{sqs_url(config)} is not served by FOQS ({error or 'no answer'})", problem)
    if program != "foqs":
        return Finding(
            _SUBJECT, "bad", f"{sqs_url(config)} is not served by FOQS, but by {program or 'another'}", problem
        )
    return Finding(_SUBJECT, "ok", f"{sqs_url(config)} is served by FOQS")


def _serving_program(config: Config) -> str:
    """Return the header `Server` of a reply. Does not verify a certificate: the clients do. Raises OSError, HTTPException."""
    host, port = local_address(config.server.host).strip("[]"), config.server.sqs_port
    if config.server.tls_cert_file:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        connection: HTTPConnection = HTTPSConnection(host, port, timeout=_TIMEOUT_S, context=context)
    else:
        connection = HTTPConnection(host, port, timeout=_TIMEOUT_S)
    try:
        connection.request("POST", "/", b"{}", _HEADERS)
        return connection.getresponse().getheader("Server") or ""
    finally:
        connection.close()


def _check_message_size(config: Config) -> Iterator[Finding]:
    """Warn if a namespace without a limit of its own refuses messages that SQS allows."""
    allowed = config.namespace.payload_bytes_max
    if allowed < MESSAGE_BYTES_MAX + OVERHEAD_BYTES_MAX:
        yield Finding(
            _SUBJECT,
            "warning",
            f"messages are limited to about {max(0, allowed - OVERHEAD_BYTES_MAX):,} bytes; SQS allows {MESSAGE_BYTES_MAX:,}",
            f"set namespace.payload_bytes_max to {PAYLOAD_BYTES_CEILING}, or a limit of its own for the namespace of an "
            "account, if programs send longer ones",
        )


async def _check_accounts(config: Config) -> list[Finding]:
    """Check that the namespace of each account exists, if the catalog is a file of this machine."""
    path = config.catalog_file
    if path is None or config.cluster.zookeeper:
        return []
    try:
        document = await FileCatalog(path, config.catalog.bytes_max).load()
    except CatalogError:
        return []  # the check of the catalog reports it
    missing = [
        f"{account} ({namespace})"
        for account, namespace in config.sqs.accounts.items()
        if document.version and namespace not in document.namespaces
    ]
    if not missing:
        return []
    remedy = "create it with foqs namespace create NAME, or correct sqs.accounts"
    return [Finding(_SUBJECT, "bad", f"these accounts have no namespace: {', '.join(missing)}", remedy)]
