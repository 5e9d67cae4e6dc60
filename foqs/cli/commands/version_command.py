"""The command that shows which foqs is installed, and what it works with.

Always true: nothing is read but this installation. Knows nothing of hosts.
"""

from __future__ import annotations

import re
import sqlite3
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from typing import Any, Final

import click

from foqs.cli.output import Format, output_option, show_fields
from foqs.runtime.plain_python import is_compiled

EXTRAS_SHOWN: Final = ("server", "spark")
"""The extras whose packages are shown. The others are for developers."""


@click.command("version", epilog="\b\nExamples:\n  foqs version\n  foqs version --all\n  foqs version --all -o json")
@click.option("--all", "everything", is_flag=True, help="Also Python, dependencies, contract, tables and documents.")
@output_option
def version_(everything: bool, form: Format) -> None:
    """Show the version of foqs, and with --all of everything that it works with.

    With --all, schema versions are those of the tables that this program makes; foqs doctor shows those that a database has.
    """
    show_fields(dict(_versions(everything)), form)


def _versions(everything: bool) -> Iterator[tuple[str, Any]]:
    yield "foqs", version("foqs")
    yield "modules", "compiled" if is_compiled() else "plain Python"
    if not everything:
        return
    from foqs.catalog.document import FORMAT_MAX
    from foqs.store.mysql.mysql_migrations import MIGRATIONS as MYSQL_MIGRATIONS
    from foqs.store.sqlite.sqlite_sql import MIGRATIONS as SQLITE_MIGRATIONS
    from foqs_contract.contract_version import CONTRACT_VERSION
    from shardmgr.documents import FORMAT

    yield "python", ".".join(map(str, sys.version_info[:3]))
    yield "sqlite", sqlite3.sqlite_version
    yield "contract", CONTRACT_VERSION
    yield "schema_mysql", MYSQL_MIGRATIONS[-1].number
    yield "schema_sqlite", SQLITE_MIGRATIONS[-1].number
    yield "format_catalog", FORMAT_MAX
    yield "format_registry", FORMAT
    for name in sorted(_dependencies(), key=str.lower):
        try:
            yield f"dependency_{name}", version(name)
        except PackageNotFoundError:
            yield f"dependency_{name}", None


def _dependencies() -> set[str]:
    """Return the packages that the client, the host and the Spark sink ask for."""
    found = set()
    for requirement in requires("foqs") or ():
        extra = re.search(r"extra == ['\"]([\w-]+)['\"]", requirement)
        name = re.match(r"[\w.-]+", requirement)
        if name and (extra is None or extra[1] in EXTRAS_SHOWN):
            found.add(name[0])
    return found
