"""The pages on compatibility and upgrades have the versions and the tests that the code has."""

from __future__ import annotations

import re
import tomllib
from itertools import pairwise
from typing import Final

from foqs.catalog.document import FORMAT_MAX, FORMAT_VERSION
from foqs.store.mysql.mysql_migrations import MIGRATIONS
from foqs_contract.contract_version import ADDED_FIELDS, CONTRACT_VERSION
from shardmgr.documents import FORMAT
from shardmgr.versions import WITHOUT_ENTRY
from tests.compat.contracts_check import ROOT
from tests.compat.documents_check import FOLDER
from tests.support.older_version import OLDER

PAGE: Final = (ROOT / "docs" / "compatibility.md").read_text()
UPGRADING: Final = (ROOT / "docs" / "upgrading.md").read_text()
PROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_page_has_the_current_versions() -> None:
    rows = dict(re.findall(r"^\| ([\w ,]+): [^|]+ \| (\d+) \|", PAGE, re.MULTILINE))
    assert rows == {
        "contract": str(CONTRACT_VERSION),
        "documents": str(FORMAT),
        "documents, the newest that is read": str(FORMAT_MAX),
    }
    assert FORMAT == FORMAT_VERSION
    assert [int(folder.name) for folder in FOLDER.iterdir()] == [FORMAT]


def test_the_page_has_the_numbers_of_the_last_releases_and_each_rises_by_one_at_most() -> None:
    rows = re.findall(r"^\| (\d+\.\d+\.\d+)[^|]*\| (\d+) \| (\d+) \| (\d+) \|$", PAGE, re.MULTILINE)
    releases = {release: tuple(map(int, numbers)) for release, *numbers in rows}
    assert releases["0.1.0"] == (WITHOUT_ENTRY.wire, WITHOUT_ENTRY.documents, WITHOUT_ENTRY.schema)
    *before, last = releases.values()
    now = (CONTRACT_VERSION, FORMAT_MAX, MIGRATIONS[-1].number)
    if PROJECT["version"] in releases:
        assert releases[PROJECT["version"]] == last == now
    for earlier, later in pairwise([*before, last, now]):
        assert all(0 <= b - a <= 1 for a, b in zip(earlier, later, strict=True))


def test_the_page_names_the_fields_that_version_1_lacks() -> None:
    added = {f"{struct.__name__}.{field}" for struct, fields in ADDED_FIELDS.items() for field in fields}
    [sentence] = re.findall(r"Contract version 1 has .*?\.\n?(?= The version)", PAGE)
    assert set(re.findall(r"`([\w.]+)`", sentence)) == added


def test_the_pages_name_the_older_version_of_the_tests_and_tests_that_exist() -> None:
    assert f"from commit `{OLDER}` on" in UPGRADING
    tests = re.findall(r"^\| `(tests/[\w/.]+)` \|", PAGE, re.MULTILINE)
    assert len(tests) == 6
    assert [test for test in tests if not (ROOT / test).is_file()] == []
