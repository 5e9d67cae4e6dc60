"""The addresses on which a host listens, as users write them, and whether they are free.

Knows nothing of commands.
"""

from __future__ import annotations

import errno
import socket
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from foqs.options.config import Config

DEV_FLAGS: Final = {
    "port": "--port",
    "http_port": "--http-port",
    "console_port": "--console-port",
    "sqs_port": "--sqs PORT",
}
"""How a user of foqs dev chooses each port of a host, by its option in the section `server`."""

_ADDRESS_OPTIONS: Final = {
    "port": "server.host",
    "http_port": "server.http_host",
    "console_port": "server.console_host",
    "sqs_port": "server.host",
}
"""The option with the address of each port."""


def listen_addresses(config: Config) -> list[str]:
    """Return a line for each address on which the host listens."""
    server = config.server
    lines = [
        f"Thrift   {url_scheme(config)}{bracketed(server.host)}:{server.port}",
        f"HTTP     http://{bracketed(server.http_host)}:{server.http_port}/  (livez, readyz, metrics)",
    ]
    url = console_url(config)
    if url is not None:
        lines.append(f"Console  {url}")
    return lines if server.sqs_port < 0 else [*lines, f"SQS      {sqs_url(config)}  (endpoint URL)"]


def console_url(config: Config) -> str | None:
    """Return the address of the console; None if it is off."""
    server = config.server
    if not server.console:
        return None
    scheme = "https" if server.tls_cert_file else "http"
    return server.console_url or f"{scheme}://{bracketed(server.console_host)}:{server.console_port}/"


def sqs_url(config: Config) -> str:
    """Return the endpoint URL of the SQS server."""
    server = config.server
    scheme = "https" if server.tls_cert_file else "http"
    return f"{scheme}://{bracketed(server.host)}:{server.sqs_port}"


def url_scheme(config: Config) -> str:
    """Return the scheme of the host's address: foqs:// or foqss://."""
    return "foqss://" if config.server.tls_cert_file else "foqs://"


def bracketed(host: str) -> str:
    """Return a host as it is written in a URL."""
    return f"[{host}]" if ":" in host else host


def local_address(host: str) -> str:
    """Return the host of a URL at which this machine reaches a server that listens on `host`."""
    return {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, bracketed(host))  # noqa: S104


def port_problem(host: str, port: int, option: str) -> str | None:
    """Return why `host`:`port` cannot be listened on, and the remedy; None if it can.

    Args:
        option: the name of the port in the section `server`.
    """
    try:
        found: list[Any] = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        with socket.socket(family, kind, protocol) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(1)
    except OSError as error:
        change = f"choose another with {DEV_FLAGS[option]} (foqs dev) or server.{option} (configuration)"
        if error.errno == errno.EADDRINUSE:
            return f"Port {port} on {host} is in use by another process; {change}."
        if error.errno == errno.EACCES:
            return f"Port {port} on {host} needs rights that this user lacks; {change}."
        return (
            f"Cannot listen on {host}, port {port} ({error.strerror}); "
            f"set {_ADDRESS_OPTIONS[option]} to an address of this machine."
        )
    return None
