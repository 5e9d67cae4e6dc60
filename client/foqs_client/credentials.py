"""Who a client is, and whom it trusts.

Holds what is needed for the beginning of a connection: TLS, and a call of
`authenticate` before any other. Always true: a token is read from its file anew
for every connection, so that it can be changed while clients run; it stands in
no text of an error. Knows nothing of addresses and of other calls.
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
from foqs_client.idl import ttypes
from foqs_client.thrift_messages import Refused, ThriftMethod, Unreadable

TOKEN_BYTES_MAX: Final = 4_096
_AUTHENTICATE: Final = ThriftMethod("authenticate")
_NO_TLS: Final = "if it speaks no TLS, its address begins with foqs://"

Handshake: TypeAlias = Callable[[HostConnection, float], Awaitable[None]]
"""Makes a new link ready for calls, by a moment of the loop's clock. Raises OSError, and FoqsError for good."""


@dataclass(slots=True, frozen=True)
class Tls:
    """How the hosts of a `foqss://` address are recognised, and the client by them.

    Attributes:
        ca_file: the CA of the hosts' certificates, PEM; the system's if None.
        cert_file: the client's certificate and its chain, PEM: its subject's common
            name is the principal.
        key_file: the certificate's key, PEM, where it is not in `cert_file`.
    """

    ca_file: str | Path | None = None
    cert_file: str | Path | None = None
    key_file: str | Path | None = None

    def context(self) -> ssl.SSLContext:
        """Reads the files. Raises InvalidArgument, which names the file."""
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
    """A `Connect` that speaks TLS; it raises OSError, `Untrusted` where the host's certificate is not accepted."""

    async def connect(factory: Callable[[], asyncio.BaseProtocol], host: str, port: int) -> Any:
        loop = asyncio.get_running_loop()
        try:
            return await loop.create_connection(factory, host, port, ssl=context, server_hostname=host)
        except ssl.SSLCertVerificationError as error:
            raise UntrustedCertificate(f"its certificate is not accepted: {error.verify_message}") from None
        except ssl.SSLError as error:
            raise OSError(f"the TLS handshake failed ({_reason(error)}); {_NO_TLS}") from None
        except (ConnectionResetError, ConnectionAbortedError):
            raise OSError(f"it ended the TLS handshake; {_NO_TLS}") from None

    return connect


class UntrustedCertificate(OSError):
    """The host's certificate is not one that the client accepts: trying again changes nothing."""


def make_handshake(token: str | None, token_file: str | Path | None, has_certificate: bool) -> Handshake | None:
    """What authenticates a new connection; None where there is nothing to show.

    Args:
        has_certificate: the client shows a certificate, and wants to know that it was accepted.

    Raises:
        InvalidArgument: the token cannot be one, or its file cannot be read.
    """
    if token is not None and token_file is not None:
        raise errors.InvalidArgument("give the token or its file, not both", field="token_file")
    if token is not None:
        _checked_token(token, "token")
    if token_file is not None:
        read_token(token_file)
    elif token is None and not has_certificate:
        return None

    async def greet(link: HostConnection, deadline: float) -> None:
        shown = token if token_file is None else read_token(token_file)
        await authenticate(link, shown, deadline)

    return greet


async def authenticate(connection: HostConnection, token: str | None, deadline: float) -> None:
    """Shows a token, or asks whether the certificate was accepted.

    Raises:
        OSError: there was no answer, or the host is not ready.
        FoqsError: the host said no.
    """
    body = _AUTHENTICATE.encode(ttypes.AuthenticateRequest(token))
    seqid, reply = connection.send(_AUTHENTICATE, body, deadline)
    try:
        failed = _AUTHENTICATE.decode(await reply).failed
    except (NotSent, NoReply, Unreadable, Refused) as error:
        hint = "" if token is not None else "; the host may not accept the client's certificate"
        raise OSError(f"{error}{hint}") from None
    finally:
        connection.forget(seqid)
    if failed is not None:
        refusal = conversion.error(failed.error)
        if isinstance(refusal, errors.Unavailable | errors.Overloaded | errors.DeadlineExceeded):
            raise OSError(str(refusal))
        raise refusal


def read_token(file: str | Path) -> str:
    """The first line of a file that nobody else may use; of the others, a host may know an older token.

    Raises:
        InvalidArgument: it cannot be read, others may use it, or it holds no token.
    """
    try:
        with Path(file).open("rb") as stream:
            mode = os.fstat(stream.fileno()).st_mode
            data = stream.read(TOKEN_BYTES_MAX + 1)
    except (OSError, ValueError) as error:
        problem = f"{file} cannot be read ({getattr(error, 'strerror', None) or error}); name a file with the token"
        raise errors.InvalidArgument(problem, field="token_file") from None
    if os.name == "posix" and mode & 0o077:
        problem = f"others than its owner may use {file} (mode {mode & 0o777:o}); run: chmod 600 {file}"
        raise errors.InvalidArgument(problem, field="token_file")
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
