"""Doctor names each thing that is wrong with a server of a region, with a remedy."""

from __future__ import annotations

from dataclasses import replace

import pytest

from foqs.cli.doctor.region_checks import SeenAccounts, _has, server_findings, shared_numbers
from foqs.store.mysql.expected_server import SeenServer
from foqs.store.mysql.mariadb_replication import MariadbReplication
from foqs.store.mysql.mysql_replication import MysqlReplication
from foqs.store.mysql.replication_sql import ReplicationSql
from shardmgr.primary import DatabaseServer, LossPolicy, Primary

SERVERS = {name: DatabaseServer(f"r-{name}", at) for at, name in enumerate("abc", 1)}
ENTRY = Primary(3, "a", LossPolicy.SEMI_SYNC, {"b": "", "c": ""}, servers=SERVERS)
WELL = SeenServer(2, 3, is_read_only=True, waits_for_acks=False)


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        (SeenAccounts("no answer", "", {}), "hosts do not reach it: no answer"),
        (SeenAccounts(replace(WELL, server_id=7), "", {}), "its server_id is 7, and the entry names 2"),
        (SeenAccounts(replace(WELL, passes_read_only=True), "", {}), "may write it although it is read-only"),
        (SeenAccounts(replace(WELL, is_read_only=False), "", {}), "it accepts commits, and a is the primary"),
        (SeenAccounts(WELL, "promoter lacks RELOAD", {}), "promoters cannot use it"),
        (SeenAccounts(WELL, "", {"c": "Access denied"}), "c cannot receive from it: Access denied"),
    ],
)
def test_fault_of_a_server_is_one_bad_finding(seen: SeenAccounts, said: str) -> None:
    [found] = server_findings("b", seen, "main", ENTRY)
    assert (found.check, found.state) == ("Server b", "bad")
    assert said in found.detail
    assert found.remedy


REMOVED = replace(ENTRY, ackers={"b": ""}, shut_out=("c",))
LOCKED = SeenAccounts(WELL, "", {"c": "account is locked"}, frozenset("c"))


def test_account_of_a_removed_server_may_be_locked_and_the_server_away() -> None:
    [found] = server_findings("b", LOCKED, "main", REMOVED)
    assert (found.state, "locked is the account of c, which does not acknowledge any more" in found.detail) == (
        "ok",
        True,
    )
    [found] = server_findings("c", SeenAccounts("no answer", "", {}), "main", REMOVED)
    assert (found.state, found.remedy) == ("warning", "start it, and let it rejoin: foqs database rejoin main c")
    other = SeenAccounts(WELL, "", {"c": "Access denied"})
    assert [found.state for found in server_findings("b", other, "main", REMOVED)] == ["bad"]


def test_locked_account_of_an_acker_is_to_be_unlocked() -> None:
    [found] = server_findings("b", LOCKED, "main", ENTRY)
    assert (found.state, found.remedy) == ("bad", "ALTER USER ... ACCOUNT UNLOCK there as root")
    [found] = server_findings("b", LOCKED, "main", None)
    assert found.state == "bad"


def test_server_without_a_fault_is_ok_and_all_faults_are_named() -> None:
    [found] = server_findings("b", SeenAccounts(WELL, "", {}), "main", ENTRY)
    assert (found.state, found.detail[:22]) == ("ok", "server_id 2, closed; h")
    [found] = server_findings("a", SeenAccounts(replace(WELL, server_id=1, is_read_only=False), "", {}), "main", ENTRY)
    assert "the primary" in found.detail
    assert len(server_findings("b", SeenAccounts(WELL, "away", {"a": "away", "c": "away"}), "main", ENTRY)) == 3
    [found] = server_findings("b", SeenAccounts(replace(WELL, is_read_only=False), "", {}), "main", None)
    assert found.state == "ok"


def test_right_that_promoters_lack_is_named_with_its_grant() -> None:
    grant = "GRANT CONNECTION ADMIN ON *.* TO promoter@'...'"
    lacking = SeenAccounts(WELL, "promoter lacks CONNECTION ADMIN", {}, promoter_grant=grant)
    [found] = server_findings("b", lacking, "main", ENTRY)
    assert found.state == "bad"
    assert found.detail.endswith("promoter lacks CONNECTION ADMIN")
    assert found.remedy == f"as root there: {grant} (docs/regions.md, Accounts)"


@pytest.mark.parametrize("sql", [MariadbReplication(), MysqlReplication()])
def test_right_to_end_connections_is_among_those_that_doctor_looks_for(sql: ReplicationSql) -> None:
    assert sql.kill_right in sql.promoter_rights


def test_number_of_two_servers_is_found() -> None:
    seen = {"a": SeenAccounts(WELL, "", {}), "b": SeenAccounts(WELL, "", {}), "c": SeenAccounts("away", "", {})}
    [found] = shared_numbers(seen)
    assert "a, b have the server_id 2" in found.detail
    assert not shared_numbers({"a": seen["a"], "c": seen["c"]})


def test_rights_are_those_for_the_whole_server() -> None:
    mariadb = [
        ("GRANT RELOAD, READ_ONLY ADMIN ON *.* TO `p`@`%` IDENTIFIED BY PASSWORD '*1'",),
        ("GRANT SELECT ON `f`.* TO `p`@`%`",),
    ]
    assert _has(mariadb, "READ ONLY ADMIN")
    assert _has(mariadb, "RELOAD")
    assert not _has(mariadb, "SELECT")
    assert _has([(b"GRANT CONNECTION_ADMIN,REPLICATION_SLAVE_ADMIN ON *.* TO `p`@`%`",)], "REPLICATION_SLAVE_ADMIN")
    assert _has([("GRANT ALL PRIVILEGES ON *.* TO `p`@`%`",)], "PROCESS")
