"""What the documents name exists: modules, options, metrics, commands, calls, files and the words of the program."""

from __future__ import annotations

import re
from typing import Final

import pytest

from tests.support.document_names import ROOT, Span, missing_links, problem_of, spans_of

_AT_THE_TOP: Final = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")
NAMES_OF_OTHERS: Final = {
    "CONN_HEALTH_CHECKS": "a setting of Django",
    "--no-tablespaces": "a flag of mysqldump",
    "--ssl-mode": "a flag of MySQL's client",
    "--ssl-verify-server-cert": "a flag of MariaDB's client",
    "[client]": "a section of a file of MySQL's clients",
    "authMode": "KEDA",
    "authenticationRef": "KEDA",
    "innodb_file_per_table": "a variable of MySQL and MariaDB",
    "innodb_undo_tablespaces": "a variable of MariaDB",
    "keyCertSign": "X.509",
    "linux_x86_64": "a platform of Python's packages",
    "mariadb_backup_binlog_info": "a file of mariadb-backup",
    "minPartitions": "an option of Spark's source for Kafka",
    "proxy_pass": "nginx",
    "replica_preserve_commit_order": "a variable of MySQL",
    "targetValue": "KEDA",
    "xtrabackup_binlog_info": "a file of mariadb-backup",
}
FILES_NAMED_FROM_PARTS: Final = {"console-secret.json": "the name of the document, and a suffix"}
FORMER_NAMES: Final = {
    "[namespaces.NAME]": "removed",
    "foqs_client.consumer.literal": "renamed",
    "foqs_client.idl": "moved to foqs_contract",
    "foqs_client.thrift_messages": "its place is foqs_contract.thrift_method",
    "shard.row_cache_bytes_max": "removed",
}
"""What documents say of an earlier version outside of a table."""
EXCEPTIONS: Final = NAMES_OF_OTHERS | FILES_NAMED_FROM_PARTS | FORMER_NAMES

A_DESIGN: Final = "**This is a design."
"""A page with this sentence may name what will exist."""

WRONG_NAMES: Final = {
    "a module": "foqs.rpc.connectoin",
    "a name in a module": "foqs_client.client.Cleint",
    "an option": "shard.flush_bytes_least",
    "options by their beginning": "shard.braker_*",
    "a section": "[wires]",
    "an option as a variable": "FOQS_RPC__FRAME_BYTES_LEAST=1",
    "a metric": "foqs_enqueued_itms_total",
    "a histogram's part": "foqs_ready_items_bucket",
    "a command": "foqs topic lsit",
    "one of a choice of commands": "foqs topic list|shwo",
    "a command after a path": "/opt/foqs/bin/foqs hots --config foqs.toml",
    "a flag of a command": "foqs topic list --every",
    "a flag alone": "--adopt-clutser",
    "a flag of a pipeline": "foqs spark load FOLDER --colunm a=b",
    "a target of make": "make tset",
    "a program": "python -m perf.brust",
    "a program by its path": ".venv/bin/python tools/call.py",
    "a call": "listItmes",
    "a file": "foqs/queue/oder_meter.py",
    "files by a pattern": "tests/simulation/fleets*.py",
    "a test": "tests/unit/test_glossary.py::test_nothing",
    "a file by its last name": "placment.py",
    "a class": "RoutingTabel",
    "a name in a class": "FlushPlanner.complet_all",
    "a constant": "KEYS_EXPIRED_PER_FLSUH",
    "a field": "deliver_after_mss",
}


def documents() -> dict[str, str]:
    """Return the documents by their paths. Of the changelog, the newest section."""
    paths = [ROOT / name for name in _AT_THE_TOP] + sorted((ROOT / "docs").rglob("*.md"))
    texts = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in paths}
    head, newest, *_ = re.split(r"^(?=## )", texts["CHANGELOG.md"], flags=re.MULTILINE)
    return texts | {"CHANGELOG.md": head + newest}


def test_what_documents_name_exists() -> None:
    pages = {name: text for name, text in documents().items() if A_DESIGN not in text}
    spans = [span for name, text in pages.items() for span in spans_of(name, text)]
    assert len(spans) > 3_000

    assert [problem for span in spans if span.text not in EXCEPTIONS and (problem := problem_of(span))] == []


def test_a_page_that_says_that_it_is_a_design_names_what_does_not_exist() -> None:
    designs = {name: text for name, text in documents().items() if A_DESIGN in text}

    assert [name for name, text in designs.items() if not any(map(problem_of, spans_of(name, text)))] == []


def test_files_that_documents_link_to_exist() -> None:
    found = [f"{name}: {target}" for name, text in documents().items() for target in missing_links(ROOT / name, text)]

    assert found == []


def test_each_exception_is_in_a_document_and_names_nothing_of_the_program() -> None:
    spans = {span.text: span for name, text in documents().items() for span in spans_of(name, text)}

    assert [name for name in EXCEPTIONS if name not in spans or problem_of(spans[name]) is None] == []


@pytest.mark.parametrize("wrong", WRONG_NAMES.values(), ids=WRONG_NAMES.keys())
def test_a_wrong_name_is_found(wrong: str) -> None:
    (span,) = spans_of("docs/page.md", f"It is in `{wrong}`.")

    assert (problem_of(span) or "").startswith(f"docs/page.md:1: `{wrong}`")


def test_a_wrong_command_in_a_block_of_code_is_found_in_its_line() -> None:
    first, second = spans_of("page.md", "```sh\nfoqs topic list\n$ foqs topic \\\n    lsit\nls\n```")

    assert problem_of(first) is None
    assert problem_of(second) == "page.md:4: `foqs topic lsit`: `topic` has no command lsit"


def test_a_module_beside_another_one_is_searched_for_there() -> None:
    assert [problem_of(span) for span in spans_of("page.md", "`foqs.rpc.server`, `.messages`")] == [None, None]
    assert problem_of(Span("page.md:1", ".codex", "foqs.rpc.server")) is not None


def test_a_link_to_a_file_that_is_missing_is_found() -> None:
    assert missing_links(ROOT / "docs" / "page.md", "[a](glossary.md#items) [b](glosary.md) [c](../README.md)") == [
        "glosary.md"
    ]


def test_decision_records_are_listed_by_number_without_a_gap() -> None:
    folder = ROOT / "docs" / "decisions"
    records = {path.name: path.read_text(encoding="utf-8")[2:6] for path in sorted(folder.glob("[0-9]*.md"))}
    listed = re.findall(r"^\| \[(\d+)\]\((\S+)\)", (folder / "README.md").read_text(encoding="utf-8"), re.MULTILINE)

    assert list(records.values()) == [f"{number:04}" for number in range(1, len(records) + 1)]
    assert listed == [(number, name) for name, number in records.items()]
    assert all(name.startswith(number) for name, number in records.items())
