"""Certificates for tests: a CA and the certificates that it signs.

Always true: keys are files that only their owner may read.
"""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_HOURS = datetime.timedelta(hours=12)


@dataclass(slots=True, frozen=True)
class Signed:
    """The files of a certificate and its key."""

    cert: Path
    key: Path


class Authority:
    """A certificate authority of its own."""

    def __init__(self, folder: Path, name: str = "Test CA") -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        subject_key = x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())
        self._key_identifier = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(subject_key)
        """What Python demands of each certificate since version 3.13."""
        now = datetime.datetime.now(datetime.UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(self._name)
            .issuer_name(self._name)
            .public_key(self._key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - 4 * _HOURS)
            .not_valid_after(now + 4 * _HOURS)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(_ca_usage(), critical=True)
            .add_extension(subject_key, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        folder.mkdir(parents=True, exist_ok=True)
        self.file = folder / f"{name.replace(' ', '-')}.pem"
        self.file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def sign(self, *names: str, expired: bool = False, names_issuer: bool = True) -> Signed:
        """A certificate of these common names, good for 127.0.0.1 and localhost, for hosts and clients.

        Args:
            names_issuer: it has an Authority Key Identifier.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name) for name in names]))
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - 2 * _HOURS)
            .not_valid_after(now + (-_HOURS if expired else _HOURS))
            .add_extension(
                x509.SubjectAlternativeName(
                    [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
                ),
                critical=False,
            )
            .add_extension(
                x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
                critical=False,
            )
        )
        if names_issuer:
            builder = builder.add_extension(self._key_identifier, critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        stem = "-".join(names) + ("-expired" if expired else "")
        signed = Signed(self._folder / f"{stem}.pem", self._folder / f"{stem}.key")
        signed.cert.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        secret_file(
            signed.key,
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            ),
        )
        return signed

    def locked(self, key: Path) -> bytes:
        """A key of this authority's with a passphrase."""
        loaded = serialization.load_pem_private_key(key.read_bytes(), None)
        return loaded.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"a passphrase"),
        )


def _ca_usage() -> x509.KeyUsage:
    """What the key of a CA may do. Python demands it since version 3.13."""
    return x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )


def secret_file(path: Path, content: bytes, mode: int = 0o600) -> Path:
    """A file with a secret."""
    path.write_bytes(content)
    path.chmod(mode)
    return path
