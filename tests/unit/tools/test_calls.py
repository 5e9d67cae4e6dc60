"""The page of the calls is made from their rows."""

from __future__ import annotations

from pathlib import Path

from foqs_contract.call_table import CALLS
from tools import calls


def test_page_that_differs_from_the_rows_is_found_and_written_again(tmp_path: Path) -> None:
    page = tmp_path / "calls.md"
    assert calls.main(["--check", "--file", str(page)]) == 1
    assert calls.main(["--file", str(page)]) == 0
    assert calls.main(["--check", "--file", str(page)]) == 0
    assert [line.split("`")[1] for line in page.read_text().splitlines() if line.startswith("| `")] == list(CALLS)
    page.write_text(page.read_text().replace("noted", "forgotten"))
    assert calls.main(["--check", "--file", str(page)]) == 1


def test_page_of_the_documentation_is_up_to_date() -> None:
    assert calls.main(["--check"]) == 0
