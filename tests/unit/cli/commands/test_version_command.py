"""Tests of foqs version."""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path

from click.testing import CliRunner

from foqs.cli import root

PROJECT = tomllib.loads((Path(__file__).parents[4] / "pyproject.toml").read_text())["project"]


def test_version_is_that_of_the_project() -> None:
    result = CliRunner().invoke(root, ["version", "-o", "json"])
    assert result.exit_code == 0
    [row] = json.loads(result.stdout)
    assert row["foqs"] == PROJECT["version"]
    assert set(row) == {"foqs", "modules"}


def test_all_versions_are_shown_as_fields() -> None:
    [row] = json.loads(CliRunner().invoke(root, ["version", "--all", "-o", "json"]).stdout)
    assert row["python"] == ".".join(map(str, sys.version_info[:3]))
    for name in ("contract", "schema_mysql", "schema_sqlite", "format_catalog", "format_registry"):
        assert row[name] >= 1
    assert row["dependency_pydantic"].startswith("2.")
    assert "dependency_pyspark" in row
    assert not {"dependency_pytest", "dependency_matplotlib"} & set(row)


def test_table_has_a_line_per_version() -> None:
    result = CliRunner().invoke(root, ["version", "--all"])
    assert "schema_mysql" in result.stdout
    assert "dependency_thrift" in result.stdout
