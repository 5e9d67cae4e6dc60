"""Secrets and certificates from files: which are accepted, and which are refused with one line."""

from __future__ import annotations

import os
import ssl
from pathlib import Path

import pytest

from foqs.access import secret_files
from foqs.access.keyring import Keyring, TlsFiles, common_name, read_keyring, signing_secret
from foqs.access.secret_files import UnusableFile, read_tokens
from foqs.access.tls_files import UnusableOptionFile
from tests.support.certificates import Authority, secret_file

OLD, NEW = b"the-old-secret-of-orders", b"the-new-secret-of-orders"


def test_each_line_of_a_token_file_is_a_valid_token(tmp_path: Path) -> None:
    file = secret_file(tmp_path / "tokens", NEW + b"\r\n" + OLD + b"\n\n")
    keyring = read_keyring({"orders": str(file)}, None)
    assert [keyring.find_token(token) and keyring.find_token(token)[0] for token in (OLD, NEW)] == ["orders"] * 2  # type: ignore[index]
    assert keyring.find_token(OLD[:-1]) is keyring.find_token(b"") is keyring.find_token(OLD + b"\n") is None


def test_keyring_stores_no_token_in_clear(tmp_path: Path) -> None:
    file = secret_file(tmp_path / "tokens", OLD)
    keyring = read_keyring({"orders": str(file)}, None)
    assert OLD not in b"".join(keyring.principal_by_digest)
    assert "secret" not in repr(keyring)


def test_each_token_has_a_signing_secret_that_does_not_reveal_it(tmp_path: Path) -> None:
    file = secret_file(tmp_path / "tokens", NEW + b"\n" + OLD)
    assert read_keyring({"orders": str(file)}, None).signing_secrets == {}
    keyring = read_keyring({"orders": str(file)}, None, with_signing_secrets=True)
    assert keyring.signing_secrets == {"orders": [signing_secret(NEW), signing_secret(OLD)]}
    assert len(set(keyring.signing_secrets["orders"])) == 2
    assert all(len(secret) == 43 and "the-" not in secret for secret in keyring.signing_secrets["orders"])
    assert "secret" not in repr(keyring)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "empty"),
        (b"\n\n", "empty"),
        (b"x" * 15, "line 1 has 15 bytes"),
        (OLD + b"\n\n" + NEW, "line 2 has 0 bytes"),
        (b" " + OLD, "line 1 is not printable"),
        (OLD + b"\x00", "line 1 is not printable"),
        (OLD + b"\xff", "line 1 is not printable"),
        (b"\n".join(b"%s%d" % (OLD, n) for n in range(secret_files.TOKENS_MAX + 1)), "9 lines"),
        (b"x" * 4_097, "longer than 4096"),
    ],
)
def test_file_with_invalid_tokens_is_refused_without_quoting_them(tmp_path: Path, content: bytes, words: str) -> None:
    file = str(secret_file(tmp_path / "tokens", content))
    with pytest.raises(UnusableOptionFile, match=r"auth\.principals\.orders\.token_file") as caught:
        read_keyring({"orders": file}, None)
    text = str(caught.value)
    assert words in text
    assert text.startswith(f"{file}: ")
    assert "\n" not in text
    assert "secret-of" not in text


@pytest.mark.parametrize("mode", [0o620, 0o610, 0o604, 0o602, 0o601])
def test_file_that_other_users_may_use_is_refused(tmp_path: Path, mode: int) -> None:
    with pytest.raises(UnusableFile, match="chmod 600"):
        read_tokens(str(secret_file(tmp_path / "tokens", OLD, mode)))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to root")
def test_file_of_root_that_only_a_group_may_read_is_accepted_as_kubernetes_mounts_it(tmp_path: Path) -> None:
    file = secret_file(tmp_path / "tokens", OLD, 0o440)
    os.chown(file, 0, 10_001)
    assert read_tokens(str(file)) == [OLD]


def test_file_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = secret_file(tmp_path / "tokens", OLD)
    if os.geteuid() == 0:
        os.chown(file, 12_345, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 12_345)
    with pytest.raises(UnusableFile, match="belongs to another user"):
        read_tokens(str(file))


def test_path_that_is_not_a_regular_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    for name, words in (
        ("pipe", "regular"),
        (".", "regular"),
        ("absent", "cannot be read"),
        ("a\0b", "cannot be read"),
    ):
        with pytest.raises(UnusableFile, match=words):
            read_tokens(str(tmp_path / name))


def test_token_of_two_principals_is_refused(tmp_path: Path) -> None:
    one, two = (str(secret_file(tmp_path / name, OLD)) for name in ("one", "two"))
    with pytest.raises(UnusableOptionFile, match="also holds a secret of 'a'") as caught:
        read_keyring({"a": one, "b": two}, None)
    assert caught.value.option == "auth.principals.b.token_file"


def test_credential_is_valid_only_while_the_current_keyring_has_it(tmp_path: Path) -> None:
    file = secret_file(tmp_path / "tokens", OLD)
    before = read_keyring({"orders": str(file)}, None)
    found = before.find_token(OLD)
    assert found is not None
    secret_file(file, NEW)
    after = read_keyring({"orders": str(file)}, None)
    assert before.is_valid_credential(found[1])
    assert not after.is_valid_credential(found[1])


# ------------------------------------------------------------------------- TLS


def test_tls_context_uses_certificate_key_and_client_ca(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    host = authority.sign("host")
    plain = read_keyring({}, TlsFiles(str(host.cert), str(host.key)))
    asking = read_keyring({}, TlsFiles(str(host.cert), str(host.key), str(authority.file)))
    assert plain.tls_context is not None
    assert asking.tls_context is not None
    assert plain.tls_context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert (plain.tls_context.verify_mode, plain.client_ca_digest) == (ssl.CERT_NONE, None)
    assert asking.tls_context.verify_mode is ssl.CERT_OPTIONAL
    assert asking.client_ca_digest is not None
    assert asking.is_valid_credential(asking.client_ca_digest)
    assert not plain.is_valid_credential(asking.client_ca_digest)
    assert Keyring().tls_context is None


@pytest.mark.parametrize(
    ("change", "key", "words"),
    [
        ({"key": "open.key"}, "server.tls_key_file", "chmod 600"),
        ({"key": "absent"}, "server.tls_key_file", "cannot be read"),
        ({"key": "other.key"}, "server.tls_cert_file", "cannot be used"),
        ({"key": "locked.key"}, "server.tls_cert_file", "passphrase"),
        ({"cert": "absent"}, "server.tls_cert_file", "cannot be read"),
        ({"cert": "host.key"}, "server.tls_cert_file", "cannot be used"),
        ({"client_ca": "absent"}, "server.tls_client_ca_file", "cannot be read"),
        ({"client_ca": "host.key"}, "server.tls_client_ca_file", "no readable certificate"),
    ],
)
def test_unusable_tls_file_is_named_with_its_option(
    tmp_path: Path, change: dict[str, str], key: str, words: str
) -> None:
    authority = Authority(tmp_path)
    host = authority.sign("host")
    authority.sign("other")
    secret_file(tmp_path / "open.key", host.key.read_bytes(), 0o644)
    secret_file(tmp_path / "locked.key", authority.locked(host.key))
    names = {"cert": "host.pem", "key": "host.key", "client_ca": authority.file.name} | change
    with pytest.raises(UnusableOptionFile) as caught:
        read_keyring({}, TlsFiles(**{part: str(tmp_path / name) for part, name in names.items()}))
    assert caught.value.option == key
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_common_name_is_none_unless_there_is_exactly_one() -> None:
    def named(*names: str) -> dict[str, object]:
        return {"subject": tuple((("commonName", name),) for name in names)}

    assert common_name(named("orders")) == "orders"
    assert common_name(named("orders", "admin")) is common_name(named()) is common_name({}) is common_name(None) is None
