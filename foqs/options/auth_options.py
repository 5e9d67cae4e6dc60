"""The options of `[auth]`: who may call; and what must hold between them and those of the listener.

Knows nothing of files' content.
"""

from __future__ import annotations

from typing import Final, Self

from pydantic import model_validator

from foqs.options.options import MS, InvalidOption, Options, ServerOptions, is_loopback, option

PRINCIPALS_MAX: Final = 1_000
PRINCIPAL_NAME_BYTES_MAX: Final = 255


class PrincipalOptions(Options):
    """One principal."""

    token_file: str = option(
        "",
        "path",
        "Its secrets, one a line, each of them valid, in a file that only its owner may read. Empty: it is known by a client "
        "certificate with its name as common name.",
    )
    admin: bool = option(False, "true or false", "It may do everything, in every namespace and to the cluster.")


class AuthOptions(Options):
    """Who may call. Secrets are in files; SIGHUP has them read again."""

    enabled: bool = option(
        False,
        "true or false",
        "Every call needs a principal, known by a token or a client certificate, and a grant on its namespace; what is not "
        "granted is refused.",
    )
    timeout_ms: int = option(
        10_000, MS, "A connection that has shown no principal by then is closed, so that it takes nobody's place.", 100,
        10 * 60_000,
    )  # fmt: skip
    failure_delay_ms: int = option(
        500, MS, "A wrong token is answered after this time, so that trying many takes long.", 0, 60_000
    )
    failures_max: int = option(3, "failures", "A connection with so many wrong tokens is closed.", 1, 1_000)
    principals: dict[str, PrincipalOptions] = option(
        {},
        "tables",
        "Each [auth.principals.NAME] has token_file (a path; one secret a line, all of them valid, in a file that only its "
        "owner may read) and admin (true: it may do everything, in every namespace and to the cluster). A client certificate "
        "of server.tls_client_ca_file needs no table: its common name is its principal.",
    )

    @model_validator(mode="after")
    def _check_principal_names(self) -> Self:
        if len(self.principals) > PRINCIPALS_MAX:
            raise InvalidOption(
                f"{len(self.principals)} are more than {PRINCIPALS_MAX}",
                "know them by client certificates, which need no table",
                "principals",
            )
        for name in self.principals:
            if not name or not name.isprintable() or len(name.encode()) > PRINCIPAL_NAME_BYTES_MAX:
                raise InvalidOption(
                    "a principal's name is printable text",
                    f"choose one of 1 to {PRINCIPAL_NAME_BYTES_MAX} bytes",
                    f"principals.{name!a}",
                )
        return self


def check_listen_addresses(server: ServerOptions, auth: AuthOptions) -> None:
    """Refuses to be reached by other machines without knowing who they are. Raises Invalid."""
    if server.insecure_listen:
        return
    if not is_loopback(server.host):
        lacks = [] if auth.enabled else ["auth.enabled"]
        lacks += [] if server.tls_cert_file else ["server.tls_cert_file"]
        if lacks:
            raise InvalidOption(
                f"listening on {server.host or 'every address'} would let anybody who can connect read and delete items, "
                f"as {' and '.join(lacks)} {'is' if len(lacks) == 1 else 'are'} not set",
                "set that, listen on 127.0.0.1, or accept it with --insecure-listen or server.insecure_listen=true",
                "server.host",
            )
    if not is_loopback(server.http_host):
        raise InvalidOption(
            f"listening on {server.http_host or 'every address'} would show metrics to anybody who can connect",
            "listen on 127.0.0.1, or accept it with --insecure-listen or server.insecure_listen=true",
            "server.http_host",
        )


def check_authentication(server: ServerOptions, auth: AuthOptions) -> None:
    """Refuses TLS and authentication that are there by half, or let nobody in. Raises Invalid."""
    if bool(server.tls_cert_file) != bool(server.tls_key_file):
        absent = "tls_key_file" if server.tls_cert_file else "tls_cert_file"
        raise InvalidOption("a certificate and its key go together", "set both, or neither", f"server.{absent}")
    if server.tls_client_ca_file and not (server.tls_cert_file and auth.enabled):
        raise InvalidOption(
            "nobody would look at clients' certificates",
            "set auth.enabled and server.tls_cert_file too, or leave it empty",
            "server.tls_client_ca_file",
        )
    if not auth.enabled or server.tls_client_ca_file:
        return
    if not auth.principals:
        raise InvalidOption(
            "there is no principal, so that nobody could call",
            "add [auth.principals.NAME] with a token_file, or set server.tls_client_ca_file",
            "auth.principals",
        )
    for name, options in auth.principals.items():
        if not options.token_file:
            raise InvalidOption(
                f"nobody could show to be {name}",
                "name a file with its secrets, or set server.tls_client_ca_file",
                f"auth.principals.{name}.token_file",
            )
