"""Tests of the demo's files: the search, the topics, and the results of valid and planted files."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from foqs.demo import run_files
from foqs.demo.file_work import FileResult, FileTask, process, process_all


def write(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"text of {name}")


def test_files_are_found_in_order_without_links_caches_and_own_data(tmp_path: Path) -> None:
    write(tmp_path, "b.py", "a/x.txt", "a/__pycache__/x.pyc", "site-packages/y.py", "foqs-data/shard-0.db")
    (tmp_path / "link.py").symlink_to("b.py")
    (tmp_path / "loop").symlink_to("loop")
    found = run_files.find_files(tmp_path, None, avoid=tmp_path / "foqs-data")
    assert found == [str(tmp_path / "b.py"), str(tmp_path / "a/x.txt")]


def test_limit_takes_the_first_files(tmp_path: Path) -> None:
    write(tmp_path, "a", "b", "c")
    assert run_files.find_files(tmp_path, 2) == [str(tmp_path / "a"), str(tmp_path / "b")]


def test_the_standard_library_has_files() -> None:
    assert Path(run_files.find_files(run_files.standard_library(), 1)[0]).is_file()


def test_topics_follow_the_type_of_the_file() -> None:
    topics = run_files.topics_by_path(["/x/a.py", "/x/B.PY", "/x/README", "/x/odd.a b", "/x/c.tar.gz"], "run")
    assert list(topics.values()) == ["run/py", "run/py", "run/other", "run/other", "run/gz"]


def test_rare_types_share_a_topic() -> None:
    paths = [f"/x/{number}.t{kind}" for kind in range(40) for number in range(40 - kind)]
    topics = run_files.topics_by_path(paths, "run")
    assert len(set(topics.values())) == run_files.TOPICS_MAX
    assert (topics["/x/0.t0"], topics["/x/0.t39"]) == ("run/t0", "run/other")


def test_entry_describes_its_file(tmp_path: Path) -> None:
    write(tmp_path, "a.py")
    entry = run_files.read_file(str(tmp_path / "a.py"), "t")
    checksum = hashlib.sha256(b"text of a.py").hexdigest()
    assert json.loads(entry.payload) == {"path": str(tmp_path / "a.py"), "size": 12, "sha256": checksum}
    assert entry.priority == 12


def test_huge_file_has_the_worst_priority() -> None:
    assert run_files.FileEntry("/x", "t", 2**40, "").priority == 2**31 - 1


def test_a_name_that_is_not_utf8_survives_the_payload() -> None:
    entry = run_files.FileEntry("/x/\udcff", "t", 1, "")
    assert json.loads(entry.payload)["path"] == "/x/\udcff"


def result_of(path: Path) -> FileResult:
    entry = run_files.read_file(str(path), "t")
    return process(FileTask(entry.path, entry.size, entry.sha256))


def test_valid_file_is_compressed_and_its_checksum_computed_again(tmp_path: Path) -> None:
    path = tmp_path / "zeros"
    path.write_bytes(bytes(3_000_000))
    done = result_of(path)
    assert done.error is None
    assert done.sha256 == hashlib.sha256(bytes(3_000_000)).hexdigest()
    assert 0 < done.compressed_bytes < 100_000


def test_results_come_in_the_order_of_the_tasks(tmp_path: Path) -> None:
    write(tmp_path, "good")
    good = run_files.read_file(str(tmp_path / "good"), "t")
    missing, fine = process_all([FileTask("/nowhere/at/all", 1, ""), FileTask(good.path, good.size, good.sha256)])
    assert (missing.error, fine.error) == ("No such file or directory", None)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        (run_files.ALTERED, "the content does not match its checksum"),
        (run_files.TRUNCATED, "7 bytes, not the 47 that were enqueued"),
        (run_files.VANISHED, "No such file or directory"),
        (run_files.NOW_A_FOLDER, "Is a directory"),
        (run_files.LINKED_TO_ITSELF, "Too many levels of symbolic links"),
    ],
)
def test_planted_file_fails_once_it_is_damaged(tmp_path: Path, name: str, why: str) -> None:
    planted_files = run_files.PlantedFiles(tmp_path)
    entry = next(run_files.read_file(path, "t", planted=True) for path in planted_files.paths if path.endswith(name))
    task = FileTask(entry.path, entry.size, entry.sha256)
    assert process(task).error is None
    planted_files.spoil()
    assert process(task).error == why
