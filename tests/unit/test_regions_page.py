"""The page on regions has the settings and rights with which the tests run their servers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from foqs.dev.region_database import LOG_OPTIONS
from tests.support.region_servers import OPTIONS, PROMOTER_RIGHTS, follow_statements

PAGE: Final = (Path(__file__).parents[2] / "docs/regions.md").read_text(encoding="utf-8")
INI: Final = dict(zip(("mariadb", "mysql9"), re.findall(r"```ini\n(.*?)```", PAGE, re.DOTALL), strict=True))


@pytest.mark.parametrize("kind", INI)
def test_page_has_the_settings_of_the_servers_and_no_others(kind: str) -> None:
    expected = {"[mysqld]", "server_id = 11"}
    for option in (*LOG_OPTIONS, *OPTIONS[kind]):
        name, equals, value = option.removeprefix("--").partition("=")
        expected.add(name.replace("-", "_") + (f" = {value}" if equals else ""))
    assert set(INI[kind].splitlines()) == expected


@pytest.mark.parametrize("kind", INI)
def test_page_has_the_rights_of_promoters(kind: str) -> None:
    assert f"GRANT {PROMOTER_RIGHTS[kind]} ON *.* TO promoter@'%';" in PAGE


@pytest.mark.parametrize("kind", INI)
def test_page_lets_a_server_receive_as_the_tests_do(kind: str) -> None:
    change, start = follow_statements(kind, "b", 3306, "db-a")
    assert f"```sql\n{change};\n{start};\n```" in PAGE
