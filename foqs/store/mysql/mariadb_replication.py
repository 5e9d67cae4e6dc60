"""The SQL of a promoter for MariaDB 10.11 or later."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from foqs.store.mysql.gtids import ServerUnfit, gtid_list, merged
from foqs.store.mysql.replication_sql import (
    CONNECT_RETRY_S,
    HEARTBEAT_S,
    Reception,
    ReplicationLogin,
    ReplicationSql,
    complaint_of,
    login_literals,
    text,
)
from shardmgr.primary import ReplicationPosition


class MariadbReplication(ReplicationSql):
    """See `ReplicationSql`."""

    source_word = b"master"
    replica_word = b"slave"
    start_counters = (
        "COM_START_SLAVE",
        "COM_START_ALL_SLAVES",
        "COM_CHANGE_MASTER",
        "COM_RESET",
    )
    promoter_rights = (
        "READ_ONLY ADMIN",
        "RELOAD",
        "REPLICATION SLAVE ADMIN",
        "REPLICATION MASTER ADMIN",
        "PROCESS",
        "CONNECTION ADMIN",
    )
    kill_right = "CONNECTION ADMIN"
    log_status = ("RPL_STATUS",)
    schema = b"information_schema"
    read_reception = b"SHOW ALL SLAVES STATUS"
    read_applied = b"SELECT @@GLOBAL.gtid_binlog_state, @@GLOBAL.gtid_slave_pos"
    read_only_setting = b"read_only"
    allow_own_writes = ()
    forbid_own_writes = ()
    bound_stops = ()

    def reception(self, rows: Sequence[Sequence[Any]]) -> Reception:
        if not rows:
            return Reception()
        if len(rows) > 1 or text(rows[0][0]):
            raise ServerUnfit("it has a named replication connection; remove it with RESET SLAVE 'NAME' ALL")
        # SHOW has no names here; newer servers add columns at the end.
        host, port, running = text(rows[0][3]), text(rows[0][5]), text(rows[0][12])
        uses_gtid, received = text(rows[0][44]), text(rows[0][45])
        if running not in ("Yes", "No", "Connecting", "Preparing") or uses_gtid not in (
            "Slave_Pos",
            "Current_Pos",
            "No",
        ):
            raise ServerUnfit("its SHOW ALL SLAVES STATUS has other columns than those of MariaDB 10.11 to 12")
        if uses_gtid == "No":
            raise ServerUnfit("it does not replicate by GTID; set MASTER_USE_GTID = slave_pos")
        # Empty: the server or its reception was started, and has not reached its source since.
        position = gtid_list(received) if received else None
        complaint = complaint_of(text(rows[0][37]), text(rows[0][39]), applies=text(rows[0][13]) != "No")
        return Reception(
            f"{host}:{port}", running != "No", position, complaint, f"at {received}" if running == "Yes" else ""
        )

    def applied(self, rows: Sequence[Sequence[Any]]) -> ReplicationPosition:
        return merged(*(gtid_list(text(each)) for each in rows[0]))

    def is_read_only(self, variables: Mapping[str, str]) -> bool:
        return variables.get("READ_ONLY", "OFF").upper() not in ("OFF", "0")

    def passes_read_only(self, grants: Sequence[Sequence[Any]]) -> bool:
        # ALL is written out unless all of it was granted.
        everywhere = (text(row[0]).upper() for row in grants if " ON *.* TO " in text(row[0]).upper())
        return any(
            "ALL PRIVILEGES" in grant or "READ_ONLY ADMIN" in grant or "READ ONLY ADMIN" in grant
            for grant in everywhere
        )

    def kept_log(self, counters: Mapping[str, str]) -> bool:
        # A server that was started with init_rpl_role=SLAVE is an idle or active slave here until it is started again.
        return counters.get("RPL_STATUS") == "AUTH_MASTER"

    def change_source(self, source: ReplicationLogin) -> bytes:
        # A former primary has transactions of its own: DEMOTE adds them to the position from which it goes on.
        return (
            b"CHANGE MASTER TO MASTER_HOST = %s, MASTER_PORT = %d, MASTER_USER = %s, MASTER_PASSWORD = %s, "
            b"MASTER_USE_GTID = slave_pos, MASTER_DEMOTE_TO_SLAVE = 1, MASTER_CONNECT_RETRY = %d, MASTER_HEARTBEAT_PERIOD = %d"
            % (*login_literals(source), CONNECT_RETRY_S, HEARTBEAT_S)
        ) + self._tls_options(source.tls, checks=source.tls is not None and source.tls.ca_file != "")
