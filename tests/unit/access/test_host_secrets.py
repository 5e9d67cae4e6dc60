"""The secrets of a host: what is read, and errors of one line that name the file and the option and show no secret."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from foqs.access.host_secrets import (
    check_secrets,
    cluster_credentials,
    database_password,
    database_tls,
    read_host_keyring,
)
from foqs.options.config import Config, ConfigError, load
from tests.support.certificates import Authority, secret_file

CLUSTER: Mapping[str, object] = {
    "cluster.zookeeper": "zk1:2181",
    "databases.main.url": "mysql://foqs@db1:3306/foqs",
    "databases.second-1.url": "sqlite:/tmp/second",
}
NETWORK = "mysql://foqs@db:3306/foqs"


def refused(options: Mapping[str, object]) -> ConfigError:
    """Return why the secrets of a host with these options cannot be used."""
    config = load(overrides=options)
    with pytest.raises(ConfigError) as caught:
        check_secrets(config)
    assert "\n" not in str(caught.value)
    return caught.value


def with_tokens(file: str, **server: object) -> Config:
    options = {f"server.{name}": value for name, value in server.items()}
    return load(overrides={"auth.enabled": True, "auth.principals.orders.token_file": file, **options})


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"store.password_file": "no-such-file"}, "store.password_file"),
        ({"auth.enabled": True, "auth.principals.a.token_file": "no-such-file"}, "auth.principals.a.token_file"),
        (
            {"server.tls_cert_file": "no-such-file", "server.tls_key_file": "no-such-file"},
            "server.tls_key_file",
        ),
        ({**CLUSTER, "cluster.credentials_file": "no-such-file"}, "cluster.credentials_file"),
        ({**CLUSTER, "databases.main.password_file": "no-such-file"}, "databases.main.password_file"),
    ],
)
def test_file_that_is_not_there_is_named_with_its_option(options: Mapping[str, object], key: str) -> None:
    error = refused(options)
    assert (error.source, error.key) == ("no-such-file", key)
    assert "cannot be read" in error.problem


# ----------------------------------------------------------- tokens and certificate


def test_keyring_has_the_tokens_and_the_certificate_and_the_configuration_does_not_show_them(tmp_path: Path) -> None:
    host = Authority(tmp_path).sign("host")
    tokens = secret_file(tmp_path / "tokens", b"a-secret-of-orders")
    config = with_tokens(str(tokens), host="0.0.0.0", tls_cert_file=str(host.cert), tls_key_file=str(host.key))
    keyring = read_host_keyring(config)
    assert config.server.http_host == "127.0.0.1"
    assert keyring.tls_context is not None
    assert keyring.find_token(b"a-secret-of-orders") is not None
    assert "a-secret-of-orders" not in repr(config) + config.to_toml()


def test_token_files_are_not_read_while_authentication_is_off() -> None:
    config = load(overrides={"auth.principals.orders.token_file": "no-such-file"})
    assert read_host_keyring(config).principal_by_digest == {}


def test_token_file_that_others_may_read_is_one_line_with_file_and_key(tmp_path: Path) -> None:
    tokens = secret_file(tmp_path / "tokens", b"a-secret-of-orders", 0o644)
    assert str(refused({"auth.enabled": True, "auth.principals.a.token_file": str(tokens)})) == (
        f"{tokens}: auth.principals.a.token_file: others than its owner may use it (mode 644); run: chmod 600 {tokens}"
    )


def test_signing_secrets_are_derived_only_for_the_sqs_port(tmp_path: Path) -> None:
    tokens = str(secret_file(tmp_path / "tokens", b"a-secret-of-orders"))
    assert read_host_keyring(with_tokens(tokens)).signing_secrets == {}
    assert set(read_host_keyring(with_tokens(tokens, sqs_port=0)).signing_secrets) == {"orders"}


# ------------------------------------------------------------ databases and ZooKeeper


@pytest.mark.parametrize("mode", [0o604, 0o620, 0o610])
def test_password_file_that_other_users_may_access_is_refused(tmp_path: Path, mode: int) -> None:
    file = secret_file(tmp_path / "password", b"hunter2\n", mode)
    error = refused({"store.password_file": str(file)})
    assert "chmod 600" in error.remedy
    assert "hunter2" not in str(error)


@pytest.mark.parametrize("content", [b"", b"\n", b"a\nb\n", b"\xff", b"x" * 1_025])
def test_password_file_without_one_line_of_text_is_refused(tmp_path: Path, content: bytes) -> None:
    refused({"store.password_file": str(secret_file(tmp_path / "password", content))})


def test_password_is_the_line_in_its_file(tmp_path: Path) -> None:
    file = secret_file(tmp_path / "password", b" hunter2 \r\n", 0o400)
    config = load(overrides={"store.password_file": str(file)})
    assert database_password(config) == " hunter2 "
    assert "hunter2" not in repr(config)
    assert database_password(Config()) is None


def test_databases_of_a_cluster_and_its_registry_have_secrets_of_their_own(tmp_path: Path) -> None:
    password = secret_file(tmp_path / "password", b"hunter2\n")
    credentials = secret_file(tmp_path / "credentials", b"foqs:hun:ter2\n")
    options = {"cluster.credentials_file": str(credentials), "databases.main.password_file": str(password)}
    config = load(overrides={**CLUSTER, **options})
    assert database_password(config, "main") == "hunter2"
    assert database_password(config, "second-1") is None
    assert cluster_credentials(config) == ("foqs", "hun:ter2")
    assert cluster_credentials(Config()) is None
    assert "hunter2" not in repr(config)
    credentials.write_text("hunter2\n")
    error = refused({**CLUSTER, **options})
    assert "USER:PASSWORD" in error.problem
    assert "hunter2" not in str(error)


def test_file_of_database_tls_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    signed = Authority(tmp_path).sign("host")
    good = {
        "store.url": NETWORK,
        "store.tls": "verify_identity",
        "store.tls_cert_file": str(signed.cert),
        "store.tls_key_file": str(signed.key),
    }
    context = database_tls(load(overrides=good))
    assert context is not None
    assert context.check_hostname
    assert database_tls(load()) is None
    (tmp_path / "empty.pem").touch()
    other = Authority(tmp_path / "other").sign("other")
    for change in (
        {"store.tls_ca_file": str(tmp_path / "empty.pem")},
        {"store.tls_ca_file": str(tmp_path / "none.pem")},
        {"store.tls_cert_file": str(other.cert)},
    ):
        assert refused({**good, **change}).key == next(iter(change))
    signed.key.chmod(0o644)
    assert refused(good).key == "store.tls_key_file"
