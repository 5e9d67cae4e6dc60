"""The parts of a profile: whose code a function is."""

from __future__ import annotations

import pytest

from perf.lib.machine import ROOT
from perf.profile import LOOP, _name, _part


@pytest.mark.parametrize(
    ("file", "part", "name"),
    [
        (f"{ROOT}/foqs/core/items/item.py", "core", "foqs/core/items/item.py:7 f"),
        ("/srv/foqs/foqs/store/mysql/mysql_sql.py", "store", "foqs/store/mysql/mysql_sql.py:7 f"),
        (f"{ROOT}/client/foqs_client/client.py", "other libraries", "client/foqs_client/client.py:7 f"),
        ("/srv/foqs/.venv/lib/python3.11/site-packages/pymysql/cursors.py", "driver", "pymysql/cursors.py:7 f"),
        ("/usr/lib/python3.11/asyncio/tasks.py", "asyncio", "11/asyncio/tasks.py:7 f"),
    ],
)
def test_a_function_counts_for_its_package_in_whatever_checkout_it_was_compiled(
    file: str, part: str, name: str
) -> None:
    assert (_part((file, 7, "f")), _name((file, 7, "f"))) == (part, name)
    assert _part(LOOP) == "event loop"
