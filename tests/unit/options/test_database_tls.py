"""The options of TLS to a database: what is refused, and which option the error names."""

from __future__ import annotations

from pathlib import Path

import pytest

from foqs.options.config import ConfigError, load

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
