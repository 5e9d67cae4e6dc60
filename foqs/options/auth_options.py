"""The options of `[auth]`, and the rules between them and `[server]`.

Knows nothing of the content of files.
"""

from __future__ import annotations

from typing import Final, Self

from pydantic import model_validator

from foqs.options.options import InvalidOption, Options, ServerOptions, is_loopback, option

PRINCIPALS_MAX: Final = 1_000
PRINCIPAL_NAME_BYTES_MAX: Final = 255


class PrincipalOptions(Options):
    """A principal that the configuration names."""

    token_file: str = option(
        "",
        "path",
        "A file with the principal's secrets, one a line, which only its owner may read. Each of them is "
        "valid. Empty: the principal shows a client certificate with its name as common name.",
        change="Set it for a program that shows no certificate.",
    )
    admin: bool = option(
        False,
        "true or false",
        "The principal may do everything in every namespace and in the cluster.",
        change="Set it for people and hosts that administer the cluster.",
    )


class AuthOptions(Options):
    """Authentication. Secrets are in files; SIGHUP reads them again."""

    enabled: bool = option(
        False,
        "true or false",
        "Every call needs a principal, shown by a token or a client certificate, and a grant on its namespace.",
        change="Set it if anybody who must not read and delete every item can connect.",
    )
    principals: dict[str, PrincipalOptions] = option(
        {},
        "tables",
        "Each [auth.principals.NAME] has token_file (a path to a file that only its owner may read, with one "
        "secret a line, each of them valid) and admin (true: the principal may do everything in every "
        "namespace and in the cluster). A client certificate of server.tls_client_ca_file needs no table: its "
        "common name is its principal.",
        change="Add one for each person or program that needs grants of its own.",
    )

    @model_validator(mode="after")
    def _check_principal_names(self) -> Self:
        if len(self.principals) > PRINCIPALS_MAX:
            raise InvalidOption(
                f"{len(self.principals)} principals are more than {PRINCIPALS_MAX}",
                "use client certificates, which need no table",
                "principals",
            )
        for name in self.principals:
            if not name or not name.isprintable() or len(name.encode()) > PRINCIPAL_NAME_BYTES_MAX:
                raise InvalidOption(
                    "the name of a principal has only printable characters",
                    f"choose one of 1 to {PRINCIPAL_NAME_BYTES_MAX} bytes",
                    f"principals.{name!a}",
                )
        return self


def check_listen_addresses(server: ServerOptions, auth: AuthOptions) -> None:
    """Refuse to listen beyond loopback without TLS and authentication. Raises InvalidOption."""
    if server.insecure_listen:
        return
    if not is_loopback(server.host):
        lacks = [] if auth.enabled else ["auth.enabled"]
        lacks += [] if server.tls_cert_file else ["server.tls_cert_file"]
        if lacks:
            raise InvalidOption(
                f"listening on {server.host or 'every address'} would let anybody who can connect read and delete items, "
                f"as {' and '.join(lacks)} {'is' if len(lacks) == 1 else 'are'} not set",
                "set it, listen on 127.0.0.1, or accept it with --insecure-listen or server.insecure_listen=true",
                "server.host",
            )
    if not is_loopback(server.http_host):
        raise InvalidOption(
            f"listening on {server.http_host or 'every address'} would show metrics to anybody who can connect",
            "listen on 127.0.0.1, or accept it with --insecure-listen or server.insecure_listen=true",
            "server.http_host",
        )


def check_authentication(server: ServerOptions, auth: AuthOptions) -> None:
    """Refuse TLS or authentication that is half configured or accepts no principal. Raises InvalidOption."""
    if bool(server.tls_cert_file) != bool(server.tls_key_file):
        absent = "tls_key_file" if server.tls_cert_file else "tls_cert_file"
        raise InvalidOption("a certificate and its key go together", "set both, or neither", f"server.{absent}")
    if server.tls_client_ca_file and not (server.tls_cert_file and auth.enabled):
        raise InvalidOption(
            "client certificates would not be checked",
            "set auth.enabled and server.tls_cert_file too, or leave it empty",
            "server.tls_client_ca_file",
        )
    if not auth.enabled or server.tls_client_ca_file:
        return
    if not auth.principals:
        raise InvalidOption(
            "there is no principal, so nobody could call",
            "add [auth.principals.NAME] with a token_file, or set server.tls_client_ca_file",
            "auth.principals",
        )
    for name, options in auth.principals.items():
        if not options.token_file:
            raise InvalidOption(
                f"{name} has no way to authenticate",
                "name a file with its secrets, or set server.tls_client_ca_file",
                f"auth.principals.{name}.token_file",
            )
