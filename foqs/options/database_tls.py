"""Checks the options of TLS to a database, which each database of a host has."""

from __future__ import annotations

from typing import Protocol

from foqs.options.options import DatabaseTls, InvalidOption, StoreUrl


class DatabaseTlsOptions(Protocol):
    """The options for TLS connections to one database."""

    @property
    def parsed_url(self) -> StoreUrl: ...
    @property
    def tls(self) -> DatabaseTls: ...
    @property
    def tls_ca_file(self) -> str: ...
    @property
    def tls_cert_file(self) -> str: ...
    @property
    def tls_key_file(self) -> str: ...


def check_database_tls(options: DatabaseTlsOptions, section: str) -> None:
    """Refuse TLS that is half configured, or to a database that is not reached over a network. Raises InvalidOption.

    Args:
        section: the section of the options: `store`, or `databases.NAME`.
    """
    files = {
        "tls_ca_file": options.tls_ca_file,
        "tls_cert_file": options.tls_cert_file,
        "tls_key_file": options.tls_key_file,
    }
    if options.tls == "disabled":
        for name in (name for name, file in files.items() if file):
            raise InvalidOption(
                f"{section}.tls is disabled, so nothing would be encrypted",
                f"set {section}.tls to verify_identity, or leave this empty",
                f"{section}.{name}",
            )
        return
    url = options.parsed_url
    if url.kind != "mysql" or url.socket is not None:
        raise InvalidOption(
            f"{section}.url names no server that is reached over a network",
            "leave it at disabled, or name a server as mysql://user@host:port/database",
            f"{section}.tls",
        )
    if options.tls == "required" and options.tls_ca_file:
        raise InvalidOption(
            f"{section}.tls is required, which checks no certificate",
            f"set {section}.tls to verify_identity or verify_ca, or leave this empty",
            f"{section}.tls_ca_file",
        )
    if options.tls == "verify_ca" and not options.tls_ca_file:
        raise InvalidOption(
            f"{section}.tls is verify_ca, and anybody can get a certificate of one of the system's CAs",
            f"name the CA of the server, or set {section}.tls to verify_identity",
            f"{section}.tls_ca_file",
        )
    if bool(options.tls_cert_file) != bool(options.tls_key_file):
        absent = "tls_key_file" if options.tls_cert_file else "tls_cert_file"
        raise InvalidOption("a certificate and its key go together", "set both, or neither", f"{section}.{absent}")
