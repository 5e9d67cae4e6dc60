"""The SQL of a promoter by the kind of server."""

from __future__ import annotations

from foqs.store.mysql.mariadb_replication import MariadbReplication
from foqs.store.mysql.mysql_replication import MysqlReplication
from foqs.store.mysql.replication_sql import ReplicationSql


def replication_sql_of(version: str) -> ReplicationSql:
    """Return the statements for a server. `version`: its text of `VERSION()`."""
    return MariadbReplication() if "MARIADB" in version.upper() else MysqlReplication()
