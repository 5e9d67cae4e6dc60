"""A server that is told to follow first ends the connections of hosts, which may hold rows that it must change."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

import pytest

from foqs.store.mysql.mariadb_replication import MariadbReplication
from foqs.store.mysql.mysql_driver import MysqlSettings, Result, ServerError
from foqs.store.mysql.mysql_replication import MysqlReplication
from foqs.store.mysql.mysql_server import MysqlServer, ServerAccess
from foqs.store.mysql.replication_sql import ReplicationSql
from shardmgr.promotion import SendCommand, ServerCommand
from shardmgr.server_port import ServerFailed
from tests.support.aio import run

FOLLOW = SendCommand("a", ServerCommand.FOLLOW, "b")
HOST, ENDED, COMMITTING, PROMOTER, STRANGER, OTHER_SCHEMA = range(21, 27)
PROCESSES = {
    HOST: ("hosts", "foqs", "Sleep", ""),
    ENDED: ("hosts", "foqs", "Sleep", ""),
    COMMITTING: ("hosts", "foqs", "Query", "Waiting for semi-sync ACK from slave"),
    PROMOTER: ("promoter", "", "Query", "starting"),
    STRANGER: ("root", "foqs", "Sleep", ""),
    OTHER_SCHEMA: ("hosts", "other", "Sleep", ""),
}


class PlainLink:
    """A server with these connections. A KILL of one of `errors` fails with its code."""

    def __init__(self, errors: Mapping[int, int]) -> None:
        self.timeout_s = 30.0
        self.statements: list[bytes] = []
        self._errors = errors

    async def run(self, *statements: bytes) -> Sequence[Result]:
        self.statements += statements
        if statements == (b"SHOW PROCESSLIST",):
            rows = [
                (number, user.encode(), b"127.0.0.1", database.encode(), command.encode(), 1, state.encode())
                for number, (user, database, command, state) in PROCESSES.items()
            ]
            return [Result(rows, 0)]
        killed = re.fullmatch(rb"KILL CONNECTION (\d+)", statements[0])
        if killed and int(killed[1]) in self._errors:
            raise ServerError(self._errors[int(killed[1])], "refused")
        return [Result([], 0)]

    @property
    def kills(self) -> list[int]:
        return [int(found) for each in self.statements for found in re.findall(rb"KILL CONNECTION (\d+)", each)]


def server(link: PlainLink, sql: ReplicationSql | None = None) -> MysqlServer:
    accesses = {
        name: ServerAccess(MysqlSettings("", user="promoter"), (name, 3306), f"replica_{name}", "secret", "hosts")
        for name in ("a", "b")
    }
    return MysqlServer("a", 11, cast("Any", link), sql or MariadbReplication(), "foqs", accesses)


def test_connections_of_hosts_to_the_database_are_ended_before_it_follows() -> None:
    link = PlainLink({ENDED: 1094})
    run(server(link).carry_out(FOLLOW))
    assert link.kills == [HOST, ENDED]
    last = max(number for number, each in enumerate(link.statements) if each.startswith(b"KILL"))
    assert link.statements[last + 1] == b"STOP SLAVE"
    assert link.statements[-1] == b"START SLAVE"


def test_server_does_not_follow_while_a_connection_cannot_be_ended() -> None:
    link = PlainLink({HOST: 1205})
    with pytest.raises(ServerFailed, match="a: refused"):
        run(server(link).carry_out(FOLLOW))
    assert b"START SLAVE" not in link.statements


@pytest.mark.parametrize(
    ("sql", "right"), [(MariadbReplication(), "CONNECTION ADMIN"), (MysqlReplication(), "CONNECTION_ADMIN")]
)
def test_promoter_that_may_not_end_connections_names_the_right_and_its_account(sql: ReplicationSql, right: str) -> None:
    link = PlainLink({HOST: 1095})
    with pytest.raises(ServerFailed) as failed:
        run(server(link, sql).carry_out(FOLLOW))
    assert str(failed.value) == (
        "a: promoter may not end connections of the hosts (hosts) there: refused (error 1095); "
        f"as root: GRANT {right} ON *.* TO promoter@'...'"
    )
    assert link.kills == [HOST]
    assert not [each for each in link.statements if each.startswith((b"STOP", b"CHANGE", b"START"))]


@pytest.mark.parametrize("command", [each for each in ServerCommand if each is not ServerCommand.FOLLOW])
def test_no_other_command_ends_a_connection(command: ServerCommand) -> None:
    link = PlainLink({})
    run(server(link).carry_out(SendCommand("a", command, term=2)))
    assert link.kills == []
