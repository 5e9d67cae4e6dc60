"""What a host recognises its peers by: tokens, and the certificates of its listener.

Holds one reading of the files, frozen; a host that is told to read them again
makes another. Always true: of a token only the SHA-256 is kept; every token is
compared with all of them, so that the time taken says nothing; a token belongs
to one principal. Knows nothing of connections or grants.
"""

from __future__ import annotations

import hashlib
import hmac
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from foqs.access.secret_files import UnusableFile, read_secret, read_tokens

PEM_BYTES_MAX: Final = 1 << 20
"""Of a certificate or key file."""


class UnusableOptionFile(Exception):
    """An option whose file cannot be used: `option` is the option's dotted name."""

    def __init__(self, option: str, cause: UnusableFile) -> None:
        super().__init__(f"{cause.file}: {option}: {cause.problem}; {cause.remedy}")
        self.option = option
        self.cause = cause


@dataclass(slots=True, frozen=True)
class TlsFiles:
    """The listener's certificate and key; and the CA of its clients' certificates, if these are asked for."""

    cert: str
    key: str
    client_ca: str = ""


@dataclass(slots=True, frozen=True)
class Keyring:
    """One reading of the files.

    Attributes:
        context: of the listener's TLS; None: it speaks plainly.
        proofs: by what a principal can be known now: the digests of the tokens, and
            that of the clients' CA.
        client_ca: the last one; None: certificates are not asked for.
    """

    principal_by_digest: Mapping[bytes, str] = field(default_factory=dict, repr=False)
    tls_context: ssl.SSLContext | None = None
    client_ca_digest: bytes | None = None

    def find_token(self, token: bytes) -> tuple[str, bytes] | None:
        """The principal that a token belongs to, and the token's digest; None when it is nobody's."""
        digest = hashlib.sha256(token).digest()
        found = None
        for known, name in self.principal_by_digest.items():
            if hmac.compare_digest(known, digest):
                found = name, known
        return found

    def is_valid_credential(self, credential_digest: bytes) -> bool:
        """Whether a principal that was known by this would be known by it now."""
        return credential_digest in self.principal_by_digest or credential_digest == self.client_ca_digest


def read_keyring(token_files: Mapping[str, str], tls: TlsFiles | None) -> Keyring:
    """Reads all files.

    Args:
        token_files: by principal.

    Raises:
        UnusableOptionFile: one of them cannot be used.
    """
    tokens: dict[bytes, str] = {}
    for name, file in token_files.items():
        key = f"auth.principals.{name}.token_file"
        try:
            found = read_tokens(file)
        except UnusableFile as error:
            raise UnusableOptionFile(key, error) from None
        for token in found:
            other = tokens.setdefault(hashlib.sha256(token).digest(), name)
            if other != name:
                problem = f"it holds a secret of {other!r} too"
                raise UnusableOptionFile(key, UnusableFile(file, problem, "give every principal secrets of its own"))
    if tls is None:
        return Keyring(tokens)
    context, client_ca = _load_tls(tls)
    return Keyring(tokens, context, client_ca)


def _load_tls(files: TlsFiles) -> tuple[ssl.SSLContext, bytes | None]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    try:
        read_secret(files.key, PEM_BYTES_MAX)
    except UnusableFile as error:
        raise UnusableOptionFile("server.tls_key_file", error) from None
    _read_public_file("server.tls_cert_file", files.cert)
    try:
        # A key with a passphrase must not make the host ask for it.
        context.load_cert_chain(files.cert, files.key, password=lambda: "")
    except (ssl.SSLError, OSError) as error:
        problem = f"it and the key in {files.key} cannot be used ({_reason(error)})"
        remedy = "name a PEM file of the certificate and its chain, and its own key without a passphrase"
        raise UnusableOptionFile("server.tls_cert_file", UnusableFile(files.cert, problem, remedy)) from None
    if not files.client_ca:
        return context, None
    key = "server.tls_client_ca_file"
    data = _read_public_file(key, files.client_ca)
    try:
        context.load_verify_locations(cadata=data.decode("ascii"))
    except (ssl.SSLError, ValueError) as error:
        problem = f"it holds no certificate that can be read ({_reason(error)})"
        raise UnusableOptionFile(
            key, UnusableFile(files.client_ca, problem, "name a PEM file of the clients' CA")
        ) from None
    # A client may come with a token instead.
    context.verify_mode = ssl.CERT_OPTIONAL
    return context, hashlib.sha256(data).digest()


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


def common_name(certificate: Mapping[str, object] | None) -> str | None:
    """The subject's one common name, of a verified certificate as `ssl` gives it; None when there is none or several."""
    subject = certificate.get("subject") if certificate else None
    if not isinstance(subject, tuple):
        return None
    names = [value for part in subject for name, value in part if name == "commonName"]
    return names[0] if len(names) == 1 else None
