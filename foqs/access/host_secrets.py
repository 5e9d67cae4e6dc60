"""The secrets of a host, read from the files that its options name.

Always true: each call reads the files again, so a replaced file needs no restart; what
cannot be used is a `ConfigError` that names the file and the option, and holds none of
its content. Knows nothing of connections.
"""

from __future__ import annotations

import ssl

from foqs.access.keyring import Keyring, TlsFiles, read_keyring
from foqs.access.secret_files import UnusableFile, read_password
from foqs.access.tls_files import UnusableOptionFile, database_context
from foqs.options.config import Config, ConfigError


def check_secrets(config: Config) -> None:
    """Read every file of a secret that a host needs. Raises `ConfigError`."""
    database_password(config)
    database_tls(config)
    read_host_keyring(config)
    if config.cluster.zookeeper:
        cluster_credentials(config)
        for name in config.databases:
            database_password(config, name)
            database_tls(config, name)
            promoter_passwords(config, name)


def database_password(config: Config, name: str | None = None) -> str | None:
    """Return the password of the store, or of a database of the cluster, without its line end; None if no file is set.

    Raises:
        ConfigError: the file cannot be read, or other users may read it.
    """
    if name is None:
        return _read_line(config.store.password_file, "store.password_file")
    return _read_line(config.databases[name].password_file, f"databases.{name}.password_file")


def promoter_passwords(config: Config, name: str) -> tuple[str, str]:
    """Return the passwords of a database's promoters and of its replicas; each is empty if no file is set.

    Raises:
        ConfigError: a file cannot be read, or other users may read it.
    """
    options, section = config.databases[name], f"databases.{name}"
    return (
        _read_line(options.promoter_password_file, f"{section}.promoter_password_file") or "",
        _read_line(options.replica_password_file, f"{section}.replica_password_file") or "",
    )


def database_tls(config: Config, name: str | None = None) -> ssl.SSLContext | None:
    """Return the TLS context of the store, or of a database of the cluster; None without TLS.

    Raises:
        ConfigError: a file cannot be used.
    """
    options = config.store if name is None else config.databases[name]
    if options.tls == "disabled":
        return None
    section = "store" if name is None else f"databases.{name}"
    files = options.tls_ca_file, options.tls_cert_file, options.tls_key_file
    try:
        return database_context(options.tls, section, *files)
    except UnusableOptionFile as error:
        raise _config_error(error) from None


def cluster_credentials(config: Config) -> tuple[str, str] | None:
    """Return (user, password) for ZooKeeper; None if no file is set.

    Raises:
        ConfigError: the file cannot be read, other users may read it, or it is not USER:PASSWORD.
    """
    file, key = config.cluster.credentials_file, "cluster.credentials_file"
    text = _read_line(file, key)
    if text is None:
        return None
    user, colon, password = text.partition(":")
    if not (user and colon and password):
        raise ConfigError(file, key, "it is not USER:PASSWORD", "write both in one line")
    return user, password


def read_host_keyring(config: Config) -> Keyring:
    """Return the tokens and certificates; empty if they are not used.

    Raises:
        ConfigError: a file cannot be used.
    """
    server, auth = config.server, config.auth
    principals = auth.principals if auth.enabled else {}
    files = {name: options.token_file for name, options in principals.items() if options.token_file}
    tls = TlsFiles(server.tls_cert_file, server.tls_key_file, server.tls_client_ca_file)
    try:
        return read_keyring(files, tls if tls.cert else None, with_signing_secrets=server.sqs_port >= 0)
    except UnusableOptionFile as error:
        raise _config_error(error) from None


def _read_line(file: str, key: str) -> str | None:
    """Return the line in the file of option `key`; None if no file is set. Raises `ConfigError`."""
    try:
        return read_password(file) if file else None
    except UnusableFile as error:
        raise ConfigError(file, key, error.problem, error.remedy) from None


def _config_error(error: UnusableOptionFile) -> ConfigError:
    return ConfigError(error.cause.file, error.option, error.cause.problem, error.cause.remedy)
