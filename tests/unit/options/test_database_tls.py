"""The options of TLS to a database: what is refused, and which option the error names."""

from __future__ import annotations

from pathlib import Path

import pytest

from foqs.options.config import Config, ConfigError, load
from tests.support.certificates import Authority

NETWORK = "mysql://foqs@db:3306/foqs"


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"tls_ca_file": "ca.pem"}, "tls_ca_file"),
        ({"tls_key_file": "key.pem"}, "tls_key_file"),
        ({"tls": "required", "tls_ca_file": "ca.pem"}, "tls_ca_file"),
        ({"tls": "verify_ca"}, "tls_ca_file"),
        ({"tls": "verify_identity", "tls_cert_file": "cert.pem"}, "tls_key_file"),
        ({"tls": "verify_identity", "tls_key_file": "key.pem"}, "tls_cert_file"),
        ({"tls": "required", "url": "mysql://foqs@localhost/foqs?socket=/run/mysql"}, "tls"),
        ({"tls": "required", "url": "sqlite:./data"}, "tls"),
        ({"tls": "verify_full"}, "tls"),
    ],
)
def test_tls_that_is_half_configured_is_refused(options: dict[str, str], key: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        load(overrides={f"store.{name}": value for name, value in ({"url": NETWORK} | options).items()})
    assert refused.value.key == f"store.{key}"
    file = tmp_path / "foqs.toml"
    lines = [f'{name} = "{value}"' for name, value in ({"url": NETWORK} | options).items()]
    file.write_text("\n".join(["[databases.main]", *lines]))
    with pytest.raises(ConfigError) as refused:
        load(file)
    assert refused.value.key == f"databases.main.{key}"


def test_files_are_read_at_the_start_and_named_if_they_cannot_be_used(tmp_path: Path) -> None:
    signed = Authority(tmp_path).sign("host")
    good = {"tls": "verify_identity", "tls_cert_file": str(signed.cert), "tls_key_file": str(signed.key)}

    def loaded(**changes: str) -> Config:
        options = {"url": NETWORK, **good, **changes}
        return load(overrides={f"store.{name}": value for name, value in options.items()})

    context = loaded().database_tls()
    assert context is not None
    assert context.check_hostname
    assert load().database_tls() is None
    signed.key.chmod(0o644)
    (tmp_path / "empty.pem").touch()
    for changes, key in (
        ({}, "store.tls_key_file"),
        ({"tls_ca_file": str(tmp_path / "empty.pem")}, "store.tls_ca_file"),
        ({"tls_ca_file": str(tmp_path / "none.pem")}, "store.tls_ca_file"),
    ):
        with pytest.raises(ConfigError) as refused:
            loaded(**changes)
        assert refused.value.key == key
    signed.key.chmod(0o600)
    with pytest.raises(ConfigError) as refused:
        loaded(tls_cert_file=str(Authority(tmp_path / "other").sign("other").cert))
    assert refused.value.key == "store.tls_cert_file"
