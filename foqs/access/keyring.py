"""The tokens of a host's principals and the TLS files of its servers.

A keyring is frozen; to read the files again, a host makes another one. Always
true: of a token only its SHA-256 is kept, and its signing secret if requests are
signed; a token is compared with all known ones, so that the time reveals nothing;
a token belongs to one principal. Knows nothing of connections or grants.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from foqs.access.secret_files import UnusableFile, read_tokens
from foqs.access.tls_files import UnusableOptionFile, load_ca, load_certificate

_SIGNING_PURPOSE: Final = b"foqs sigv4"


@dataclass(slots=True, frozen=True)
class TlsFiles:
    """The certificate and key of the host's servers, and the CA of client certificates if these are used."""

    cert: str
    key: str
    client_ca: str = ""


@dataclass(slots=True, frozen=True)
class Keyring:
    """The credentials as they were in the files.

    Attributes:
        principal_by_digest: the principal of each token, by the SHA-256 of the token.
        tls_context: the TLS context of the RPC server; None if it does not use TLS.
        client_ca_digest: the SHA-256 of the clients' CA file; None if client certificates are not used.
        signing_secrets: the secrets of each principal, one for each of its tokens; empty if nothing is signed.
    """

    principal_by_digest: Mapping[bytes, str] = field(default_factory=dict, repr=False)
    tls_context: ssl.SSLContext | None = None
    client_ca_digest: bytes | None = None
    signing_secrets: Mapping[str, Sequence[str]] = field(default_factory=dict, repr=False)

    def find_token(self, token: bytes) -> tuple[str, bytes] | None:
        """Return the principal of a token and the token's digest; None if no principal has it."""
        digest = hashlib.sha256(token).digest()
        found = None
        for known_digest, principal in self.principal_by_digest.items():
            if hmac.compare_digest(known_digest, digest):
                found = principal, known_digest
        return found

    def is_valid_credential(self, credential_digest: bytes) -> bool:
        """Return whether this credential still authenticates a principal."""
        return credential_digest in self.principal_by_digest or credential_digest == self.client_ca_digest


def signing_secret(token: bytes) -> str:
    """Return the secret with which the owner of a token signs requests, as SQS' clients do. It does not reveal the token."""
    return base64.urlsafe_b64encode(hmac.digest(token, _SIGNING_PURPOSE, "sha256")).decode().rstrip("=")


def read_keyring(
    token_files: Mapping[str, str], tls: TlsFiles | None, *, with_signing_secrets: bool = False
) -> Keyring:
    """Read all files.

    Args:
        token_files: the token file of each principal.
        with_signing_secrets: whether to derive them.

    Raises:
        UnusableOptionFile: a file cannot be used.
    """
    principal_by_digest: dict[bytes, str] = {}
    signing_secrets: dict[str, Sequence[str]] = {}
    for name, file in token_files.items():
        option = f"auth.principals.{name}.token_file"
        try:
            tokens = read_tokens(file)
        except UnusableFile as error:
            raise UnusableOptionFile(option, error) from None
        if with_signing_secrets:
            signing_secrets[name] = [signing_secret(token) for token in tokens]
        for token in tokens:
            other = principal_by_digest.setdefault(hashlib.sha256(token).digest(), name)
            if other != name:
                problem = f"it also holds a secret of {other!r}"
                raise UnusableOptionFile(option, UnusableFile(file, problem, "give every principal its own secrets"))
    if tls is None:
        return Keyring(principal_by_digest, signing_secrets=signing_secrets)
    context, client_ca_digest = _load_tls(tls)
    return Keyring(principal_by_digest, context, client_ca_digest, signing_secrets)


def _load_tls(files: TlsFiles) -> tuple[ssl.SSLContext, bytes | None]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    load_certificate(context, "server", files.cert, files.key)
    if not files.client_ca:
        return context, None
    data = load_ca(context, "server.tls_client_ca_file", files.client_ca)
    # A client may use a token instead.
    context.verify_mode = ssl.CERT_OPTIONAL
    return context, hashlib.sha256(data).digest()


def common_name(certificate: Mapping[str, object] | None) -> str | None:
    """Return the subject's common name of a certificate, in the form of `ssl`; None unless there is exactly one."""
    subject = certificate.get("subject") if certificate else None
    if not isinstance(subject, tuple):
        return None
    names = [value for part in subject for name, value in part if name == "commonName"]
    return names[0] if len(names) == 1 else None
