"""foqs console end-sessions: a host alone finds no secret, and creates another."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner, Result

from foqs.cli import root
from foqs.console.session_secret import secret_file


def end_sessions(config: Path) -> Result:
    return CliRunner().invoke(root, ["console", "end-sessions", "--config", str(config)])


def test_secret_of_a_host_alone_is_deleted(tmp_path: Path) -> None:
    config = tmp_path / "foqs.toml"
    config.write_text(f'[store]\nurl = "sqlite:{tmp_path / "data"}"\n')
    path = secret_file(tmp_path / "data")
    path.parent.mkdir()
    path.write_text("{}")
    result = end_sessions(config)
    assert result.exit_code == 0
    assert "All sessions end within 10 seconds" in result.stderr
    assert not path.exists()
    result = end_sessions(config)
    assert result.exit_code == 2
    assert f"There is no {path}" in result.stderr


def test_host_without_files_has_nothing_to_delete(tmp_path: Path) -> None:
    config = tmp_path / "foqs.toml"
    config.write_text('[store]\nurl = "memory:"\n')
    result = end_sessions(config)
    assert result.exit_code == 2
    assert "a restart ends all sessions" in result.stderr


def test_unreachable_coordinator_is_said(tmp_path: Path) -> None:
    config = tmp_path / "foqs.toml"
    config.write_text('[cluster]\nzookeeper = "127.0.0.1:1"\n[databases.main]\nurl = "mysql://root@127.0.0.1:1/foqs"\n')
    result = end_sessions(config)
    assert result.exit_code == 3
    assert "127.0.0.1:1" in result.stderr
