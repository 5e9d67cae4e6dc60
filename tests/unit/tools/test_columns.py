"""What repeats the columns of a row is made from their list."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from foqs.store.row_columns import MUTABLE_COLUMNS, ROW_COLUMNS, RowColumn
from tools import columns


def a_tree(folder: Path) -> list[str]:
    """Copy the files with blocks, and return the option that names the copy."""
    for name in columns.BLOCKS:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(columns.ROOT / name, folder / name)
    return ["--root", str(folder)]


def test_blocks_of_this_tree_are_up_to_date() -> None:
    assert columns.main(["--check"]) == 0


def test_new_column_is_found_missing_and_is_then_in_every_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = a_tree(tmp_path)
    new = RowColumn("new_ms", "int | None", "INTEGER", "BIGINT NULL", "item.new_ms", "new", default="None")
    monkeypatch.setattr(columns, "ROW_COLUMNS", (*ROW_COLUMNS, new))
    monkeypatch.setattr(columns, "MUTABLE_COLUMNS", (*MUTABLE_COLUMNS, "new_ms"))
    assert columns.main([*root, "--check"]) == 1
    assert capsys.readouterr().err.startswith(", ".join(columns.BLOCKS))
    assert columns.main(root) == 0
    assert all("new_ms" in (tmp_path / name).read_text() for name in columns.BLOCKS)
    assert columns.main([*root, "--check"]) == 0


@pytest.mark.parametrize(("kind", "mysql"), [("bytes", "BLOB NOT NULL"), ("bytes | None", "BLOB NULL")])
def test_column_without_a_form_in_mysql_is_refused(
    kind: str, mysql: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    new = RowColumn("new", kind, "BLOB", mysql, "", "")
    monkeypatch.setattr(columns, "ROW_COLUMNS", (*ROW_COLUMNS, new))
    monkeypatch.setattr(columns, "MUTABLE_COLUMNS", (*MUTABLE_COLUMNS, "new"))
    assert columns.main(a_tree(tmp_path)) == 1
    assert "new:" in capsys.readouterr().err


def test_file_without_its_comments_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = a_tree(tmp_path)
    file = tmp_path / "foqs" / "core" / "items" / "item.py"
    file.write_text(file.read_text().replace("# columns: begin row", ""))
    assert columns.main(root) == 1
    assert "foqs/core/items/item.py has no comments 'columns: begin row'" in capsys.readouterr().err
