"""foqs sqs credentials: the secret that a host accepts, for whoever may read the token."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner, Result

from foqs.access.keyring import signing_secret
from foqs.cli import root
from tests.support.certificates import secret_file

TOKEN = b"a-secret-of-the-mailer"


def credentials(*arguments: str) -> Result:
    return CliRunner().invoke(root, ["sqs", "credentials", *arguments], env={"FOQS_CONFIG": "", "FOQS_TOKEN_FILE": ""})


def expected(name: str) -> str:
    return f"AWS_ACCESS_KEY_ID={name}\nAWS_SECRET_ACCESS_KEY={signing_secret(TOKEN)}\n"


def test_credentials_follow_from_the_token_in_the_hosts_configuration(tmp_path: Path) -> None:
    tokens = secret_file(tmp_path / "tokens", TOKEN + b"\nan-older-secret-of-it")
    config = tmp_path / "foqs.toml"
    config.write_text(f'[auth]\nenabled = true\nprincipals = {{mailer = {{token_file = "{tokens}"}}}}\n')
    shown = credentials("mailer", "--config", str(config))
    assert (shown.exit_code, shown.stdout) == (0, expected("mailer"))
    assert credentials("other", "--config", str(config)).exit_code == 4


def test_credentials_follow_from_a_token_file(tmp_path: Path) -> None:
    tokens = secret_file(tmp_path / "tokens", TOKEN)
    assert credentials("mailer", "--token-file", str(tokens)).stdout == expected("mailer")


def test_what_cannot_be_used_is_refused_without_showing_a_secret(tmp_path: Path) -> None:
    open_to_all = secret_file(tmp_path / "tokens", TOKEN, 0o644)
    for arguments in (["mailer", "--token-file", str(open_to_all)], ["mailer"], ["a mailer", "--token-file", "x"]):
        shown = credentials(*arguments)
        assert shown.exit_code == 2
        assert TOKEN.decode() not in shown.output
        assert "AWS_" not in shown.output
