"""The servers of a database that has an entry, as the configuration of a host or a command reaches them.

Always true: a host's connection is checked to lead to the primary of the entry. Nothing is
connected here. Knows nothing of the rules of a promotion.
"""

from __future__ import annotations

from dataclasses import replace

from foqs.access.host_secrets import promoter_passwords
from foqs.options.config import Config
from foqs.store.mysql.expected_server import ExpectedServer
from foqs.store.mysql.mysql_driver import MysqlSettings
from foqs.store.mysql.mysql_server import MysqlServers, ServerAccess
from foqs.store.mysql.replication_sql import ReplicationTls
from foqs.store.port import StoreUnusable
from shardmgr.primary import LossPolicy, Primaries, Primary


def settings_of_primary(config: Config, database: str, settings: MysqlSettings, entry: Primary) -> MysqlSettings:
    """Return the settings with which hosts use the primary of an entry.

    Args:
        settings: those of the database without an entry.

    Raises:
        StoreUnusable: the configuration does not name the server.
    """
    address = config.databases[database].server_addresses.get(entry.server)
    if address is None:
        raise StoreUnusable(
            f"the primary of the database {database!r} is {entry.server}, whose address this host does not know; "
            f"add it to databases.{database}.servers and start the host again"
        )
    expected = ExpectedServer(
        entry.server,
        entry.servers[entry.server].server_id,
        entry.term,
        needs_acks=entry.policy is LossPolicy.SEMI_SYNC,
    )
    return replace(settings, host=address[0], port=address[1], unix_socket=None, expected=expected)


def settings_while_serving(
    config: Config, database: str, settings: MysqlSettings, primaries: Primaries
) -> MysqlSettings:
    """Return the settings with which commands use a database now: those of its primary, if it has an entry.

    Raises:
        StoreUnusable: the entry cannot be read or does not serve, or the configuration does not name its server.
    """
    if database in primaries.malformed:
        raise StoreUnusable(
            f"the entry of the database {database!r} cannot be read: {primaries.malformed[database]}; correct it, or restore it"
        )
    entry = primaries.entries.get(database)
    if entry is None:
        return settings
    if not entry.is_serving:
        raise StoreUnusable(
            f"the primary of the database {database!r} is being replaced, its entry is {entry.state.value}; wait until it serves "
            "(foqs region list)"
        )
    return settings_of_primary(config, database, settings, entry)


def promoter_servers(config: Config, database: str, settings: MysqlSettings) -> MysqlServers:
    """Return the servers of a database as a promoter reaches them. Raises `ConfigError` for a password file.

    Args:
        settings: those of the database without an entry.
    """
    options = config.databases[database]
    promoter_password, replica_password = promoter_passwords(config, database)
    tls = None
    if options.tls != "disabled":
        tls = ReplicationTls(options.replica_tls_ca_file, checks_name=options.tls == "verify_identity")
    accesses = {
        name: ServerAccess(
            replace(
                settings,
                host=host,
                port=port,
                unix_socket=None,
                user=options.promoter_user,
                password=promoter_password,
            ),
            (host, port),
            f"{options.replica_user}_{name}",
            replica_password,
            settings.user,
            tls,
        )
        for name, (host, port) in options.server_addresses.items()
    }
    return MysqlServers(settings.database, accesses)
