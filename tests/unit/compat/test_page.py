"""The page on compatibility has the versions and the tests that the code has."""

from __future__ import annotations

import re
from typing import Final

from foqs.catalog.document import FORMAT_VERSION
from foqs_contract.contract_version import ADDED_FIELDS, CONTRACT_VERSION
from shardmgr.documents import FORMAT
from tests.compat.contracts_check import ROOT, contract_tool
from tests.compat.documents_check import FOLDER
from tests.support.older_version import OLDER

PAGE: Final = (ROOT / "docs" / "compatibility.md").read_text()


def test_the_page_has_the_current_versions() -> None:
    rows = dict(re.findall(r"^\| (\w+): [^|]+ \| (\d+) \|", PAGE, re.MULTILINE))
    assert rows == {"contract": str(CONTRACT_VERSION), "documents": str(FORMAT)}
    assert FORMAT == FORMAT_VERSION
    assert [int(folder.name) for folder in FOLDER.iterdir()] == [FORMAT]
    assert max(contract_tool.recorded_contracts()) == CONTRACT_VERSION - 1


def test_the_page_names_the_fields_that_version_1_lacks() -> None:
    added = {f"{struct.__name__}.{field}" for struct, fields in ADDED_FIELDS.items() for field in fields}
    [sentence] = re.findall(r"Contract version 1 has .*?\.\n?(?= The version)", PAGE)
    assert set(re.findall(r"`([\w.]+)`", sentence)) == added


def test_the_page_names_the_older_version_of_the_tests_and_tests_that_exist() -> None:
    assert f"from commit `{OLDER}` on" in PAGE
    tests = re.findall(r"^\| `(tests/[\w/.]+)` \|", PAGE, re.MULTILINE)
    assert len(tests) == 5
    assert [test for test in tests if not (ROOT / test).is_file()] == []
