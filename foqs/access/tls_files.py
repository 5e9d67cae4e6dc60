"""Reads certificates, keys and CAs from the files of options into TLS contexts.

Always true: a key is in a file that only its owner may read; a key with a passphrase
is refused, because it would make the program prompt for it; an error names the option
and the file. Knows nothing of connections.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Final, Literal

from foqs.access.secret_files import UnusableFile, read_secret

PEM_BYTES_MAX: Final = 1 << 20
"""Limit of a certificate or key file."""


class UnusableOptionFile(Exception):
    """The file of an option cannot be used. `option` is the dotted name of the option."""

    def __init__(self, option: str, cause: UnusableFile) -> None:
        super().__init__(f"{cause.file}: {option}: {cause.problem}; {cause.remedy}")
        self.option = option
        self.cause = cause


def load_certificate(context: ssl.SSLContext, section: str, cert: str, key: str) -> None:
    """Let this side show the certificate of the options `tls_cert_file` and `tls_key_file` of a section.

    Raises:
        UnusableOptionFile: a file cannot be used.
    """
    try:
        read_secret(key, PEM_BYTES_MAX)
    except UnusableFile as error:
        raise UnusableOptionFile(f"{section}.tls_key_file", error) from None
    option = f"{section}.tls_cert_file"
    _read_public_file(option, cert)
    try:
        # Without this, a key with a passphrase would make the host prompt for it.
        context.load_cert_chain(cert, key, password=lambda: "")
    except (ssl.SSLError, OSError) as error:
        problem = f"it cannot be used with the key in {key} ({_reason(error)})"
        remedy = "name a PEM file of the certificate and its chain, and its key without a passphrase"
        raise UnusableOptionFile(option, UnusableFile(cert, problem, remedy)) from None


def load_ca(context: ssl.SSLContext, option: str, file: str) -> bytes:
    """Let a context accept the certificates of a CA, and return the file's content.

    Raises:
        UnusableOptionFile: the file cannot be used.
    """
    data = _read_public_file(option, file)
    try:
        context.load_verify_locations(cadata=data.decode("ascii"))
    except (ssl.SSLError, ValueError) as error:
        problem = f"it holds no readable certificate ({_reason(error)})"
        raise UnusableOptionFile(
            option, UnusableFile(file, problem, "name a PEM file of the CA of the other side")
        ) from None
    return data


def database_context(
    tls: Literal["required", "verify_ca", "verify_identity"], section: str, ca: str, cert: str, key: str
) -> ssl.SSLContext:
    """Return the context of connections to a database, by the options of its section. Empty names are no files.

    Raises:
        UnusableOptionFile: a file cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = tls == "verify_identity"
    if tls == "required":
        context.verify_mode = ssl.CERT_NONE
    elif ca:
        load_ca(context, f"{section}.tls_ca_file", ca)
    else:
        context.load_default_certs()
    if cert:
        load_certificate(context, section, cert, key)
    return context


def _read_public_file(option: str, file: str) -> bytes:
    try:
        with Path(file).open("rb") as stream:
            return stream.read(PEM_BYTES_MAX)
    except OSError as error:
        problem = f"it cannot be read ({error.strerror})"
        raise UnusableOptionFile(
            option, UnusableFile(file, problem, "name a PEM file that this user may read")
        ) from None


def _reason(error: Exception) -> str:
    return getattr(error, "reason", None) or str(error)
