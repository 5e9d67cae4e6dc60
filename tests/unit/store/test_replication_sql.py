"""What a promoter reads of servers is decoded, and a reply that says less than a position must is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pytest

from foqs.store.mysql.gtids import ServerUnfit, gtid_list, gtid_set, merged
from foqs.store.mysql.mariadb_replication import MariadbReplication
from foqs.store.mysql.mysql_replication import MysqlReplication
from foqs.store.mysql.replication_kinds import replication_sql_of
from foqs.store.mysql.replication_sql import Reception, ReplicationLogin, ReplicationTls, by_name, standing, write_term
from shardmgr.primary import ReplicationPosition

MARIADB, MYSQL = MariadbReplication(), MysqlReplication()
DIALECTS: Final = pytest.mark.parametrize("sql", [MARIADB, MYSQL], ids=["mariadb", "mysql"])
ON: Final = {
    MARIADB: {
        "RPL_SEMI_SYNC_MASTER_ENABLED": "ON",
        "RPL_SEMI_SYNC_MASTER_WAIT_POINT": "AFTER_SYNC",
        "RPL_SEMI_SYNC_MASTER_TIMEOUT": str(10**18),
        "RPL_SEMI_SYNC_MASTER_WAIT_NO_SLAVE": "ON",
        "RPL_SEMI_SYNC_MASTER_STATUS": "ON",
    },
    MYSQL: {
        "RPL_SEMI_SYNC_SOURCE_ENABLED": "ON",
        "RPL_SEMI_SYNC_SOURCE_WAIT_POINT": "AFTER_SYNC",
        "RPL_SEMI_SYNC_SOURCE_TIMEOUT": str(10**18),
        "RPL_SEMI_SYNC_SOURCE_WAIT_NO_REPLICA": "ON",
        "RPL_SEMI_SYNC_SOURCE_STATUS": "ON",
    },
}


def test_list_of_gtids_is_the_last_number_of_each_origin() -> None:
    assert gtid_list("") == ReplicationPosition()
    assert gtid_list("0-11-5,0-12-9,0-11-7").last == {"0-11": 7, "0-12": 9}
    with pytest.raises(ServerUnfit, match="0-11"):
        gtid_list("0-11")


def test_set_of_gtids_has_ranges_by_uuid_and_tag() -> None:
    assert gtid_set("u:1-5:7,\nv:tag:1-3:other:2") == {"u": [(1, 5), (7, 7)], "v:tag": [(1, 3)], "v:other": [(2, 2)]}


def test_merged_position_covers_all_of_them() -> None:
    found = merged(ReplicationPosition({"a": 3}), ReplicationPosition({"a": 1, "b": 2}))
    assert found.last == {"a": 3, "b": 2}


def test_position_of_mysql_with_a_gap_is_refused() -> None:
    assert MYSQL.applied([(b"u:1-5",)]).last == {"u": 5}
    for with_gap in (b"u:1-5:7", b"u:2-5"):
        with pytest.raises(ServerUnfit, match="lacks some transactions"):
            MYSQL.applied([(with_gap,)])


def standing_of(
    sql: Any, uptime: int = 100, flushed: int = 100, now: int = 1_000, counters: Mapping[str, str] | None = None
) -> str:
    """The standing of a server that was started at 900, if not said otherwise."""
    times = [(b"Uptime", b"%d" % uptime, now), (b"Uptime_since_flush_status", b"%d" % flushed, now)]
    return standing(times, dict.fromkeys(sql.start_counters, "0") | dict(counters or {}), sql.start_counters)


@DIALECTS
def test_standing_changes_with_each_start_and_not_with_time(sql: Any) -> None:
    first = standing_of(sql)
    assert standing_of(sql, 160, 160, 1_060) == first
    assert len({first, standing_of(sql, 99), standing_of(sql, flushed=99)}) == 3
    for name in sql.start_counters:
        assert standing_of(sql, counters={name: "7"}) != first
    with pytest.raises(ServerUnfit, match=sql.start_counters[-1]):
        standing([(b"Uptime", b"1", 1), (b"Uptime_since_flush_status", b"1", 1)], {}, sql.start_counters[-1:])
    with pytest.raises(ServerUnfit, match="UPTIME"):
        standing([], dict.fromkeys(sql.start_counters, "0"), sql.start_counters)


@DIALECTS
def test_server_waits_for_acks_only_if_each_setting_says_so(sql: Any) -> None:
    assert sql.waits_for_acks(ON[sql], ON[sql])
    weaker = {name: "AFTER_COMMIT" if value == "AFTER_SYNC" else "0" for name, value in ON[sql].items()}
    for name, value in weaker.items():
        changed = ON[sql] | {name: value}
        assert not sql.waits_for_acks(changed, changed), name
    assert not sql.waits_for_acks({}, {})


@DIALECTS
def test_commits_with_and_without_an_ack_and_those_that_wait_are_counted(sql: Any) -> None:
    name = sql.source_word.decode().upper()
    counters = {f"RPL_SEMI_SYNC_{name}_{key}": value for key, value in (("YES_TX", "7"), ("NO_TX", "2"))}
    counters[f"RPL_SEMI_SYNC_{name}_WAIT_SESSIONS"] = "3"
    assert all(key.encode() in sql.read_counters for key in counters)
    assert (sql.acknowledged(counters), sql.unacknowledged(counters), sql.waiting_commits(counters)) == (7, 2, 3)
    assert (sql.acknowledged({}), sql.waiting_commits({})) == (0, 0)


def all_slaves_status(**values: str) -> tuple[bytes, ...]:
    columns = {
        "name": 0,
        "host": 3,
        "port": 5,
        "running": 12,
        "applies": 13,
        "error": 37,
        "apply_error": 39,
        "gtid": 44,
        "received": 45,
    }
    row = [b""] * 57
    for name, value in (
        {"host": "db", "port": "3306", "running": "Yes", "applies": "Yes", "gtid": "Slave_Pos"} | values
    ).items():
        row[columns[name]] = value.encode()
    return tuple(row)


def test_reception_of_mariadb_knows_what_it_has_received_once_it_has_reached_its_source() -> None:
    assert MARIADB.reception([]) == Reception()
    row = all_slaves_status(received="0-11-7")
    assert MARIADB.reception([row]) == Reception("db:3306", True, ReplicationPosition({"0-11": 7}), heard="at 0-11-7")
    assert MARIADB.reception([all_slaves_status(running="Connecting")]) == Reception("db:3306", True, None)
    # It is connected, also if there is nothing to receive yet.
    assert MARIADB.reception([all_slaves_status(received="")]).heard != ""
    assert not MARIADB.reception([all_slaves_status(running="No")]).is_running


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([all_slaves_status(name="second")], "named replication connection"),
        ([all_slaves_status(), all_slaves_status()], "named replication connection"),
        ([all_slaves_status(gtid="No")], "MASTER_USE_GTID"),
        ([all_slaves_status(running="0")], "other columns"),
        ([all_slaves_status(gtid="0-11-7")], "other columns"),
    ],
)
def test_reception_of_mariadb_that_cannot_be_judged_is_refused(rows: list[Any], reason: str) -> None:
    with pytest.raises(ServerUnfit, match=reason):
        MARIADB.reception(rows)


def test_reception_of_mysql_is_the_end_of_its_relay_log() -> None:
    assert MYSQL.reception([]) == Reception()
    row = (b"", b"db", 3306, b"1", b"ON", b"u:5-9", b"", b"", b"ON", 7)
    assert MYSQL.reception([row]) == Reception("db:3306", True, ReplicationPosition({"u": 9}), heard="7 u:5-9")
    assert MYSQL.reception([(*row[:4], b"CONNECTING", *row[5:])]).heard == ""
    assert not MYSQL.reception([(*row[:4], b"OFF", b"", *row[6:])]).is_running
    for changed, reason in (
        ((b"c", *row[1:]), "named replication channel"),
        ((*row[:3], b"0", *row[4:]), "AUTO_POSITION"),
    ):
        with pytest.raises(ServerUnfit, match=reason):
            MYSQL.reception([changed])


def test_replica_says_why_it_does_not_receive_or_apply() -> None:
    refused = "its reception ended: Got fatal error 1236"
    stands = "its SQL thread stands: Duplicate entry"
    of_mariadb = all_slaves_status(
        running="No", error="Got fatal error 1236", applies="No", apply_error="Duplicate entry"
    )
    assert MARIADB.reception([of_mariadb]).complaint == f"{refused}; {stands}"
    assert MARIADB.reception([all_slaves_status(applies="No")]).complaint == "its SQL thread stands"
    start = (b"", b"db", 3306, b"1", b"OFF", b"")
    of_mysql = (*start, b"Got fatal error 1236", b"Duplicate entry", b"OFF", 7)
    assert MYSQL.reception([of_mysql]).complaint == f"{refused}; {stands}"
    assert MYSQL.reception([(*start, b"", b"", b"ON", 7)]).complaint == ""


def test_log_of_mariadb_may_be_cut_only_by_a_start_as_a_replica() -> None:
    assert MARIADB.kept_log({"RPL_STATUS": "AUTH_MASTER"})
    assert not MARIADB.kept_log({"RPL_STATUS": "IDLE_SLAVE"})
    assert not MARIADB.kept_log({})
    assert MYSQL.kept_log({})


@DIALECTS
def test_acknowledgements_are_switched_before_the_reception_stops_or_starts(sql: Any) -> None:
    switch, stop = sql.revoke
    assert b"_enabled = 0" in switch
    assert stop.startswith(b"STOP")
    statements = sql.follow(ReplicationLogin("db", 3306, "replica", "it's"))
    assert b"'it\\'s'" in b"".join(statements)
    switched = next(number for number, each in enumerate(statements) if b"_enabled = 1" in each)
    assert switched < next(number for number, each in enumerate(statements) if each.startswith(b"START"))


def test_stop_of_a_replica_of_mysql_is_bounded_before_it_is_asked_for() -> None:
    for statements in (
        MYSQL.become_primary(waits_for_acks=True),
        MYSQL.follow(ReplicationLogin("db", 3306, "replica")),
    ):
        assert statements[:2] == (b"SET GLOBAL rpl_stop_replica_timeout = 5", b"STOP REPLICA")


@DIALECTS
def test_server_waits_for_acks_before_it_is_opened(sql: Any) -> None:
    *before, last = sql.open(waits_for_acks=True)
    assert last == b"SET GLOBAL read_only = 0"
    assert any(b"_enabled = 1" in each for each in before)


def test_names_are_quoted_and_kinds_told_apart() -> None:
    assert b"`a``b`.foqs_term" in write_term("a`b", 3, "r1")[0]
    assert by_name([(b"Uptime", b"7", 1)]) == {"UPTIME": "7"}
    assert isinstance(replication_sql_of("10.11.19-MariaDB-deb12"), MariadbReplication)
    assert isinstance(replication_sql_of("9.7.4"), MysqlReplication)


@pytest.mark.parametrize(
    ("grant", "passes"),
    [
        (b"GRANT ALL PRIVILEGES ON *.* TO `hosts`@`%`", True),
        (b"GRANT SELECT, READ_ONLY ADMIN ON *.* TO `hosts`@`%`", True),
        (b"GRANT USAGE ON *.* TO `hosts`@`%` IDENTIFIED BY PASSWORD '*0'", False),
        (b"GRANT ALL PRIVILEGES ON `foqs`.* TO `hosts`@`%`", False),
    ],
)
def test_account_of_mariadb_that_read_only_does_not_stop_is_known_by_its_rights(grant: bytes, passes: bool) -> None:
    assert MARIADB.passes_read_only([(b"GRANT USAGE ON *.* TO `x`@`%`",), (grant,)]) is passes
    assert not MYSQL.passes_read_only([(grant,)])


def test_servers_receive_over_tls_as_it_is_configured() -> None:
    def options(sql: Any, tls: ReplicationTls | None) -> str:
        login = ReplicationLogin("db-a", 3306, "replica_b", "secret", tls)
        return str(sql.change_source(login).decode()).partition("PERIOD = 1")[2]

    for sql, word in ((MARIADB, "MASTER"), (MYSQL, "SOURCE")):
        assert options(sql, None) == ""
        unchecked = f", {word}_SSL = 1, {word}_SSL_CA = '', {word}_SSL_VERIFY_SERVER_CERT = 0"
        assert options(sql, ReplicationTls()) == unchecked
        checked = f", {word}_SSL = 1, {word}_SSL_CA = '/ca.pem', {word}_SSL_VERIFY_SERVER_CERT = 1"
        assert options(sql, ReplicationTls("/ca.pem", checks_name=True)) == checked
    # MariaDB cannot compare a certificate with its CA alone.
    assert options(MARIADB, ReplicationTls("/ca.pem")).endswith("CERT = 1")
    assert options(MYSQL, ReplicationTls("/ca.pem")).endswith("CERT = 0")
