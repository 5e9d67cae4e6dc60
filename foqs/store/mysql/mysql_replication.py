"""The SQL of a promoter for MySQL 8.4 or later."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from foqs.store.mysql.gtids import ServerUnfit, gtid_set, ranges_text
from foqs.store.mysql.replication_sql import (
    CONNECT_RETRY_S,
    HEARTBEAT_S,
    Reception,
    ReplicationLogin,
    ReplicationSql,
    complaint_of,
    is_on,
    login_literals,
    text,
)
from shardmgr.primary import ReplicationPosition


class MysqlReplication(ReplicationSql):
    """See `ReplicationSql`."""

    source_word = b"source"
    replica_word = b"replica"
    start_counters = (
        "COM_REPLICA_START",
        "COM_CHANGE_REPLICATION_SOURCE",
        "COM_RESET",
    )
    promoter_rights = (
        "RELOAD",
        "REPLICATION CLIENT",
        "REPLICATION_SLAVE_ADMIN",
        "SYSTEM_VARIABLES_ADMIN",
        "PROCESS",
        "CONNECTION_ADMIN",
    )
    kill_right = "CONNECTION_ADMIN"
    log_status = ()
    schema = b"performance_schema"
    read_reception = (
        b"SELECT c.CHANNEL_NAME, c.HOST, c.PORT, c.AUTO_POSITION, s.SERVICE_STATE, s.RECEIVED_TRANSACTION_SET, "
        b"s.LAST_ERROR_MESSAGE, COALESCE((SELECT w.LAST_ERROR_MESSAGE FROM performance_schema.replication_applier_status_by_worker w "
        b"WHERE w.CHANNEL_NAME = c.CHANNEL_NAME AND w.LAST_ERROR_NUMBER <> 0 LIMIT 1), ''), "
        b"COALESCE((SELECT a.SERVICE_STATE FROM performance_schema.replication_applier_status a "
        b"WHERE a.CHANNEL_NAME = c.CHANNEL_NAME), 'OFF'), s.COUNT_RECEIVED_HEARTBEATS "
        b"FROM performance_schema.replication_connection_configuration c "
        b"JOIN performance_schema.replication_connection_status s ON s.CHANNEL_NAME = c.CHANNEL_NAME"
    )
    read_applied = b"SELECT @@GLOBAL.gtid_executed"
    read_only_setting = b"super_read_only"
    # read_only stays on: it stops hosts, which lack CONNECTION_ADMIN.
    allow_own_writes = (b"SET GLOBAL super_read_only = 0",)
    forbid_own_writes = (b"SET GLOBAL super_read_only = 1",)

    # A worker that was given a part of a transaction is stopped only after a minute without its end, which a lost primary
    # never sends. The stop goes on after the statement has given up, and is asked for again.
    bound_stops = (b"SET GLOBAL rpl_stop_replica_timeout = 5",)

    def reception(self, rows: Sequence[Sequence[Any]]) -> Reception:
        if not rows:
            return Reception()
        channel, host, port, auto_position, state, received, error, apply_error, applies, beats = map(text, rows[0])
        if len(rows) > 1 or channel:
            raise ServerUnfit("it has a named replication channel; remove it with RESET REPLICA ALL FOR CHANNEL 'NAME'")
        if auto_position != "1":
            raise ServerUnfit("it does not replicate by GTID; set SOURCE_AUTO_POSITION = 1")
        # It begins with the first transaction of the relay log: those before it are applied.
        last = {origin: ranges[-1][1] for origin, ranges in gtid_set(received).items()}
        complaint = complaint_of(error, apply_error, applies=applies != "OFF")
        heard = f"{beats} {received}" if state == "ON" else ""
        return Reception(f"{host}:{port}", state != "OFF", ReplicationPosition(last), complaint, heard)

    def applied(self, rows: Sequence[Sequence[Any]]) -> ReplicationPosition:
        found = gtid_set(text(rows[0][0]))
        for origin, ranges in found.items():
            if len(ranges) > 1 or ranges[0][0] != 1:
                raise ServerUnfit(
                    f"of {origin} it has {ranges_text(ranges)}, which lacks some transactions; wait until it has applied them, or rebuild it"
                )
        return ReplicationPosition({origin: ranges[0][1] for origin, ranges in found.items()})

    def is_read_only(self, variables: Mapping[str, str]) -> bool:
        return is_on(variables, "READ_ONLY")

    def passes_read_only(self, grants: Sequence[Sequence[Any]]) -> bool:
        return False  # nobody passes super_read_only

    def kept_log(self, counters: Mapping[str, str]) -> bool:
        return True

    def change_source(self, source: ReplicationLogin) -> bytes:
        return (
            b"CHANGE REPLICATION SOURCE TO SOURCE_HOST = %s, SOURCE_PORT = %d, SOURCE_USER = %s, SOURCE_PASSWORD = %s, "
            b"SOURCE_AUTO_POSITION = 1, GET_SOURCE_PUBLIC_KEY = 1, SOURCE_CONNECT_RETRY = %d, SOURCE_HEARTBEAT_PERIOD = %d"
            % (*login_literals(source), CONNECT_RETRY_S, HEARTBEAT_S)
        ) + self._tls_options(source.tls, checks=source.tls is not None and source.tls.checks_name)
