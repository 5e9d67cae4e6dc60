"""Authentication of a client, and its trust in hosts.

Holds the two first steps of a connection: TLS, then the call `authenticate`, whose reply
also names the version of the contract that the host serves. Always true: a token file is
read again for every connection, so that the token can be changed while clients run. No
error text contains the token. Knows nothing of addresses and of the meaning of other calls.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from foqs_client import conversion, errors
from foqs_client.host_connection import HostConnection, NoReply, NotSent
from foqs_contract.call_table import FIRST_VERSION
from foqs_contract.contract_version import too_old
from foqs_contract.idl import ttypes
from foqs_contract.request import Request
from foqs_contract.secret_file_mode import UnsafeFileMode, check_secret_file_mode
from foqs_contract.thrift_method import Refused, ThriftMethod, Unreadable

TOKEN_BYTES_MAX: Final = 4_096
_AUTHENTICATE: Final = ThriftMethod("authenticate")
_MALFORMED_CODES: Final = range(79, 94)
"""OpenSSL's codes of certificates that are not as RFC 5280 demands."""
_NO_TLS: Final = "if it has no TLS, write foqs:// in its address"

Handshake: TypeAlias = Callable[[HostConnection, float], Awaitable[None]]
"""Makes a new connection ready for calls, by a deadline. Raises OSError if a retry may help, FoqsError if not."""


@dataclass(slots=True, frozen=True)
class Tls:
    """The files of a `foqss://` connection, all PEM.

    Attributes:
        ca_file: the CA of the hosts' certificates; None: the CAs of the system.
        cert_file: the client's certificate with its chain. The common name of its subject
            is the principal.
        key_file: the key of the certificate, without passphrase; None: it is in `cert_file`.
    """

    ca_file: str | Path | None = None
    cert_file: str | Path | None = None
    key_file: str | Path | None = None

    def context(self) -> ssl.SSLContext:
        """Read the files, and return the TLS context of the connections.

        Raises:
            InvalidArgument: a file cannot be used; the message names it.
        """
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
        except OSError as error:
            problem = f"{self.ca_file} cannot be used ({_reason(error)}); name a PEM file of the hosts' CA"
            raise errors.InvalidArgument(problem, field="tls.ca_file") from None
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self.cert_file is not None:
            try:
                # A key with a passphrase must not make a program ask for it.
                context.load_cert_chain(self.cert_file, self.key_file, password=lambda: "")
            except OSError as error:
                problem = f"{self.cert_file} and its key cannot be used ({_reason(error)}); name PEM files, the key without passphrase"
                raise errors.InvalidArgument(problem, field="tls.cert_file") from None
        return context


def tls_connect(context: ssl.SSLContext) -> Callable[..., Awaitable[Any]]:
    """Return a `Connect` with TLS. It raises OSError: `TlsFailed` if the handshake fails, `UntrustedCertificate` if its certificate is bad."""

    async def connect(factory: Callable[[], asyncio.BaseProtocol], host: str, port: int) -> Any:
        loop = asyncio.get_running_loop()
        try:
            return await loop.create_connection(factory, host, port, ssl=context, server_hostname=host)
        except ssl.SSLCertVerificationError as error:
            raise UntrustedCertificate(error) from None
        except ssl.SSLError as error:
            raise TlsFailed(f"the TLS handshake failed ({_reason(error)}); {_NO_TLS}") from None
        except (ConnectionResetError, ConnectionAbortedError):
            raise TlsFailed(f"the host ended the TLS handshake; {_NO_TLS}") from None

    return connect


class TlsFailed(OSError):
    """The TLS handshake with a host failed. The text says what to do."""


class UntrustedCertificate(OSError):
    """The client does not accept the host's certificate. A retry does not help.

    Attributes:
        remedy: what to do.
    """

    def __init__(self, error: ssl.SSLCertVerificationError) -> None:
        super().__init__(f"its certificate is not accepted: {error.verify_message}")
        is_malformed = error.verify_code in _MALFORMED_CODES
        self.remedy = (
            "make it and its CA again with the extensions that RFC 5280 demands, as Python does since version 3.13"
            if is_malformed
            else "give the CA that signed it, and the host name that it contains"
        )


def make_handshake(token: str | None, token_file: str | Path | None, has_certificate: bool) -> Handshake | None:
    """Return the handshake that authenticates a new connection; None if the client has no credentials.

    Args:
        has_certificate: the client shows a certificate and checks that the host accepted it.

    Raises:
        InvalidArgument: the token is malformed, or its file cannot be used.
    """
    if token is not None and token_file is not None:
        raise errors.InvalidArgument("give the token or its file, not both", field="token_file")
    if token is not None:
        _checked_token(token, "token")
    if token_file is not None:
        read_token(token_file)
    elif token is None and not has_certificate:
        return None

    async def handshake(connection: HostConnection, deadline: float) -> None:
        current_token = token if token_file is None else read_token(token_file)
        hint = "" if current_token is not None else "; the host may not accept the client's certificate"
        await authenticate(connection, current_token, deadline, hint)

    return handshake


async def authenticate(connection: HostConnection, token: str | None, deadline: float, hint: str = "") -> None:
    """Send the token, or ask for the principal without one. The reply also names the version of the contract.

    Args:
        hint: ends the error of a call without a reply.

    Raises:
        OSError: there was no reply, or the host is not ready.
        FoqsError: the host refused.
    """
    body = _AUTHENTICATE.encode(ttypes.AuthenticateRequest(token))
    try:
        result = _AUTHENTICATE.decode(await connection.call(_AUTHENTICATE, body, deadline))
    except (NotSent, NoReply, Unreadable, Refused) as error:
        raise OSError(f"{error}{hint}") from None
    if result.failed is not None:
        refusal = conversion.error(result.failed.error)
        if refusal.retryable:
            raise OSError(str(refusal))
        raise refusal
    served = None if result.success is None else result.success.contract_version
    connection.contract_version = FIRST_VERSION if served is None else served


async def check_served(
    connection: HostConnection, method: ThriftMethod, request: Request, deadline: float, host: str = "the host"
) -> None:
    """Check that the host knows every field of a request. Asks for its version if that is not known and matters.

    The connection may not be ready any more when this returns.

    Args:
        host: the name of the host in an error.

    Raises:
        HostTooOld: the host does not know the method or a field.
        OSError: there was no reply, or the host is not ready.
        FoqsError: the host refused.
    """
    part = method.newest_part(request)
    if part is None:
        return
    if connection.contract_version is None:
        await authenticate(connection, None, deadline)
    served = connection.contract_version or FIRST_VERSION
    if served < part.version:
        raise too_old(served, host, method.name, part)


def read_token(file: str | Path) -> str:
    """Return the first line of a token file. The other lines may hold older tokens for hosts.

    Raises:
        InvalidArgument: the file cannot be read, has no token, or other users have access to it.
    """
    try:
        with Path(file).open("rb") as stream:
            status = os.fstat(stream.fileno())
            data = stream.read(TOKEN_BYTES_MAX + 1)
    except (OSError, ValueError) as error:
        problem = f"{file} cannot be read ({getattr(error, 'strerror', None) or error}); name a file with the token"
        raise errors.InvalidArgument(problem, field="token_file") from None
    if os.name == "posix":
        try:
            check_secret_file_mode(file, status)
        except UnsafeFileMode as error:
            raise errors.InvalidArgument(f"{file}: {error}", field="token_file") from None
    line, _, _ = data.partition(b"\n")
    return _checked_token(line.decode("ascii", "replace").rstrip("\r"), "token_file")


def _checked_token(token: str, field: str) -> str:
    if not token or len(token) > TOKEN_BYTES_MAX or not token.isascii() or not token.isprintable():
        problem = f"this is no token; it is a line of 1 to {TOKEN_BYTES_MAX} printable ASCII characters"
        raise errors.InvalidArgument(problem, field=field)
    return token


def _reason(error: OSError) -> str:
    reason = getattr(error, "reason", None)
    return reason.replace("_", " ").lower() if isinstance(reason, str) else error.strerror or str(error)
