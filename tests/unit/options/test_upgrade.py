"""Tests of old names: deprecated options work with a warning, and `upgrade` rewrites a file."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from foqs.cli import root
from foqs.options import renames
from foqs.options.config import Config, ConfigError, find_field, load
from foqs.options.renames import DEPRECATED, NARROWED, RENAMED, DeprecatedOption, NarrowedRange
from foqs.options.upgrade import UpgradeRefused, upgrade

SECONDS = DeprecatedOption(
    "server.stop_timeout_s", "server.stop_timeout_ms", "9.1.0", "9.2.0", lambda seconds: int(seconds * 1_000)
)
MOVED = DeprecatedOption("shard.quiet_host", "server.host", "9.1.0", "9.2.0")
REMOVED = DeprecatedOption("server.colour", None, "9.1.0", "9.2.0")


@pytest.fixture(autouse=True)
def two_deprecated_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renames, "DEPRECATED", (SECONDS, MOVED, REMOVED))


def read(tmp_path: Path, text: str, **environment: str) -> tuple[Config, list[str]]:
    file = tmp_path / "foqs.toml"
    file.write_text(text)
    warnings: list[str] = []
    return load(file, environment, on_deprecated=warnings.append), warnings


def test_deprecated_option_sets_its_successor_with_a_warning(tmp_path: Path) -> None:
    config, [warning] = read(tmp_path, "[server]\nstop_timeout_s = 7\n")
    assert config.server.stop_timeout_ms == 7_000
    for words in ("foqs.toml", "server.stop_timeout_s", "9.1.0", "9.2.0", "write server.stop_timeout_ms"):
        assert words in warning


def test_deprecated_option_may_move_to_another_section(tmp_path: Path) -> None:
    config, warnings = read(tmp_path, '[shard]\nquiet_host = "::1"\n')
    assert config.server.host == "::1"
    assert len(warnings) == 1


def test_deprecated_variable_sets_its_successor_over_the_file(tmp_path: Path) -> None:
    config, [warning] = read(tmp_path, "[server]\nstop_timeout_ms = 5_000\n", FOQS_SERVER__STOP_TIMEOUT_S="8")
    assert config.server.stop_timeout_ms == 8_000
    assert "FOQS_SERVER__STOP_TIMEOUT_MS" in warning


def test_option_that_has_no_effect_is_accepted_with_a_warning(tmp_path: Path) -> None:
    config, warnings = read(tmp_path, '[server]\ncolour = "red"\n', FOQS_SERVER__COLOUR="blue")
    assert config == Config()
    assert len(warnings) == 2
    assert all("server.colour is deprecated since 9.1.0" in warning for warning in warnings)
    assert all("remove it, it has no effect" in warning for warning in warnings)


def test_upgrade_removes_an_option_that_has_no_effect() -> None:
    text = "# top\n[server]\nport = 1\ncolour = 'red' # why\nhost = '::1'\n"
    assert upgrade(text).text == "# top\n[server]\nport = 1\nhost = '::1'\n"
    assert upgrade("server.colour = 'red'\n").text == ""


@pytest.mark.parametrize(
    ("text", "environment"),
    [
        ("[server]\nstop_timeout_s = 7\nstop_timeout_ms = 7\n", {}),
        ("", {"FOQS_SERVER__STOP_TIMEOUT_S": "8", "FOQS_SERVER__STOP_TIMEOUT_MS": "8"}),
    ],
)
def test_option_under_both_names_is_refused(tmp_path: Path, text: str, environment: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="is set too"):
        read(tmp_path, text, **environment)


def test_wrong_value_of_a_deprecated_option_is_refused_under_its_new_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"server\.stop_timeout_ms"):
        read(tmp_path, '[server]\nstop_timeout_s = "soon"\n')


def test_old_names_are_not_those_of_present_options() -> None:
    for entry in (SECONDS, MOVED, REMOVED, *DEPRECATED):
        assert find_field(tuple(entry.old.split("."))) is None
        assert entry.new is None or find_field(tuple(entry.new.split("."))) is not None


def test_upgrade_keeps_comments_and_layout() -> None:
    text = (
        "# top\n\n[ wire ]   # section\n  idle_timeout_ms=5_000 # why\n\n[buffer]\nloaded_bytes_max = 1\n"
        "[server]\nstop_timeout_s = 7  # seconds\nhost = '::1'"
    )
    assert upgrade(text).text == (
        "# top\n\n[ rpc ]   # section\n  idle_timeout_ms=5_000 # why\n\n[row_cache]\nprefetched_bytes_max = 1\n"
        "[server]\nstop_timeout_ms = 7000  # seconds\nhost = '::1'"
    )


def test_upgrade_moves_an_option_to_its_new_section() -> None:
    assert upgrade('[shard]\nquiet_host = "::1" # six\n').text == '[shard]\n\n[server]\nhost = "::1" # six\n'
    text = '[server] # here\nport = 1\n[shard]\nquiet_host = "::1"\n'
    assert upgrade(text).text == '[server] # here\nhost = "::1"\nport = 1\n[shard]\n'


@pytest.mark.parametrize(("old", "new"), [(old, new) for old, new in RENAMED.items() if "." in old])
def test_upgrade_knows_every_name_that_is_refused(old: str, new: str) -> None:
    section, name = old.split(".")
    for text in (f"[{section}]\n{name} = 5\n", f"{section}.{name} = 5\n"):
        found = upgrade(text)
        new_section, new_name = new.split(".")
        assert tomllib.loads(found.text) == {new_section: {new_name: 5}}
        assert found.unknown == ()


def test_upgrade_of_the_shipped_files_changes_nothing() -> None:
    for file in sorted((Path(__file__).parents[3] / "configs").rglob("*.toml")):
        text = file.read_text()
        assert upgrade(text) == type(upgrade(""))(text, ())


def test_unknown_options_are_reported_and_left() -> None:
    text = "[server]\nprot = 7\n[servr]\nport = 7\n[auth.principals.me]\nadmn = true\n[databases.a]\nurll = 'x'\n"
    found = upgrade(text)
    assert found.text == text
    assert [line.partition(":")[0] for line in found.unknown] == [
        "server.prot",
        "servr.port",
        "auth.principals.me.admn",
        "databases.a.urll",
    ]
    assert "did you mean server.port?" in found.unknown[0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[server", "not TOML"),
        ("[wire]\nidle_timeout_ms = 1\n[rpc]\nidle_timeout_ms = 2\n", "old and its new name"),
        ("[wire]\nidle_timeout_ms = 1\n[rpc]\nframe_bytes_max = 2\n", "write each section once"),
        ("shard = {ready_keys_max = 1}\n", "one option a line"),
        ('[server]\nname = """\n[wire]\n"""\n', "one option a line"),
    ],
)
def test_file_that_cannot_be_rewritten_is_refused_with_a_remedy(text: str, words: str) -> None:
    with pytest.raises(UpgradeRefused, match=words):
        upgrade(text)


def test_command_shows_the_difference_and_writes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "foqs.toml"
    file.write_text("[wire]\n")
    result = CliRunner().invoke(root, ["config", "upgrade", str(file)])
    assert result.exit_code == 0
    assert "-[wire]\n+[rpc]\n" in result.stdout
    assert file.read_text() == "[wire]\n"
    assert list(tmp_path.iterdir()) == [file]


def test_command_writes_and_keeps_the_old_text(tmp_path: Path) -> None:
    file = tmp_path / "foqs.toml"
    for n, name in enumerate(["foqs.toml.bak", "foqs.toml.bak2"]):
        file.write_text(f"[wire]\n# {n}\n")
        file.chmod(0o640)
        result = CliRunner().invoke(root, ["config", "upgrade", str(file), "--write"])
        assert result.exit_code == 0, result.output
        assert file.read_text() == f"[rpc]\n# {n}\n"
        assert file.stat().st_mode & 0o777 == 0o640
        assert (tmp_path / name).read_text() == f"[wire]\n# {n}\n"
        file.unlink()
    assert len(list(tmp_path.iterdir())) == 2


def test_command_on_a_file_with_nothing_to_rename_says_so(tmp_path: Path) -> None:
    file = tmp_path / "foqs.toml"
    file.write_text("[server]\nport = 1\n")
    result = CliRunner().invoke(root, ["config", "upgrade", str(file), "--write"])
    assert "nothing to rename" in result.stderr
    assert list(tmp_path.iterdir()) == [file]


def test_command_warns_of_a_deprecated_option(tmp_path: Path) -> None:
    file = tmp_path / "foqs.toml"
    file.write_text("[server]\nstop_timeout_s = 7\n")
    result = CliRunner().invoke(root, ["config", "check", str(file)])
    assert result.exit_code == 0
    assert "server.stop_timeout_s is deprecated" in result.stderr


@pytest.mark.parametrize("section", ["wire", "rpc"])
def test_removed_options_go_whatever_the_name_of_their_section(section: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renames, "DEPRECATED", DEPRECATED)
    found = upgrade(f"[{section}]\nstring_bytes_max = 1\nsilence_timeout_ms = 2\nidle_timeout_ms = 3\n")
    assert (found.text, found.unknown) == ("[rpc]\nidle_timeout_ms = 3\n", ())


def test_removed_option_of_the_command_line_is_ignored_with_a_warning() -> None:
    warnings: list[str] = []
    load(None, {}, {"server.colour": "red"}, on_deprecated=warnings.append)
    assert [line.startswith("command line: server.colour is deprecated") for line in warnings] == [True]


@pytest.mark.parametrize("narrowed", NARROWED, ids=lambda narrowed: narrowed.option)
def test_a_value_of_the_former_range_is_moved_to_the_nearest_present_one(narrowed: NarrowedRange) -> None:
    section, name = narrowed.option.split(".")
    field = find_field((section, name))
    assert field is not None
    limits = {value for limit in field.metadata for value in (getattr(limit, "ge", None), getattr(limit, "le", None))}
    assert limits - {None} == set(narrowed.present)
    moved = 0
    for former, present in zip(narrowed.former, narrowed.present, strict=True):
        warnings: list[str] = []
        variable = f"FOQS_{section}__{name}".upper()
        config = load(None, {variable: str(former)}, on_deprecated=warnings.append)
        assert getattr(getattr(config, section), name) == present
        if former == present:
            assert warnings == []
            continue
        [warning] = warnings
        assert warning.startswith(f"{variable}: {narrowed.option}: {former} is outside the range since 0.2.0")
        assert warning.endswith(f"refused from 0.3.0 on: write {present}")
        moved += 1
        outside = former - 1 if former < present else former + 1
        with pytest.raises(ConfigError, match=variable):
            load(None, {variable: str(outside)})
    assert moved
