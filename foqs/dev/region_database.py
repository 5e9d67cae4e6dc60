"""A database with a MariaDB server in each region, all on this machine.

Always true: each server starts as docs/regions.md says, read-only and receiving nothing, and has the accounts of hosts,
promoters and replicas. Knows nothing of hosts; who is the primary is decided by `foqs database adopt`, and then by hosts.
"""

from __future__ import annotations

import secrets
import shlex
import string
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pymysql

from foqs.dev.mariadb_server import MariaDb

NAME: Final = "main"
PRIMARY: Final = "a"
"""The server that is the primary first."""
START_FILE: Final = "start"
"""In the folder of a server: a script that starts it after it was killed. Its arguments are further options."""
LOG_OPTIONS: Final = ("--log-bin=bin", "--relay-log=relay", "--sync-binlog=1", "--sync-relay-log=1")
REPLICATION_OPTIONS: Final = (
    "--read-only=1",
    "--skip-slave-start",
    "--gtid-strict-mode=1",
    "--log-slave-updates",
    "--binlog-format=ROW",
    "--relay-log-recovery=0",
    "--rpl-semi-sync-master-wait-point=AFTER_SYNC",
    "--rpl-semi-sync-master-timeout=1000000000000000000",
)
PROMOTER_RIGHTS: Final = "READ_ONLY ADMIN, RELOAD, REPLICATION SLAVE ADMIN, REPLICATION MASTER ADMIN, REPLICA MONITOR, PROCESS, CONNECTION ADMIN"


class RegionDatabase:
    """The servers `a`, `b` and so on, in the regions `r1`, `r2` and so on.

    Args:
        folder: the folder for those of the servers.
        schema: the name of the schema with the tables.
        policy: `semi-sync` or `async`.
    """

    def __init__(self, folder: Path, regions: int, schema: str, policy: str = "semi-sync") -> None:
        names = string.ascii_lowercase[:regions]
        self.regions = {name: f"r{number}" for number, name in enumerate(names, 1)}
        self.servers = {
            name: MariaDb(folder / name, options=(*LOG_OPTIONS, *REPLICATION_OPTIONS, f"--server-id={number}"))
            for number, name in enumerate(names, 11)
        }
        self._schema = schema
        self._policy = policy
        self._password_file = folder / "replica-password"
        self._password_file.touch(mode=0o600)
        if not self._password_file.read_text():
            self._password_file.write_text(secrets.token_hex(16))

    @property
    def options(self) -> Mapping[str, Any]:
        """The options of every host's configuration, by dotted name."""
        first = self.servers[PRIMARY]
        addresses = ",".join(f"{name}=127.0.0.1:{server.port}" for name, server in self.servers.items())
        return {
            f"databases.{NAME}.url": f"mysql://hosts@127.0.0.1:{first.port}/{self._schema}",
            f"databases.{NAME}.servers": addresses,
            f"databases.{NAME}.promoter_user": "promoter",
            f"databases.{NAME}.replica_password_file": str(self._password_file),
        }

    @property
    def adoption(self) -> list[str]:
        """The command that makes the first entry, without its configuration."""
        regions = [f"--region={name}={region}" for name, region in self.regions.items()]
        return ["database", "adopt", NAME, "--primary", PRIMARY, *regions, "--policy", self._policy, "--yes"]

    def write_start_files(self) -> None:
        """Write for each server a script that starts it again."""
        for server in self.servers.values():
            script = server.folder / START_FILE
            script.write_text(f'#!/bin/sh\nexec {shlex.join(server.start_command())} "$@"\n')
            script.chmod(0o755)

    def prepare(self) -> None:
        """Make the accounts and the schema, and let the first primary accept commits. Safe to repeat before the adoption."""
        for server in self.servers.values():
            # Each server gets them by itself: they are in no log, so that the logs are equal.
            self._run(server, "SET SESSION sql_log_bin = 0", *self._accounts())
        self.servers[PRIMARY].query("SET GLOBAL read_only = 0")

    def follow(self) -> None:
        """Let the other servers receive from the first primary."""
        port = self.servers[PRIMARY].port
        for name, server in self.servers.items():
            if name != PRIMARY:
                change = (
                    f"CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = {port}, MASTER_USER = 'replica_{name}', "
                    f"MASTER_PASSWORD = '{self._password_file.read_text()}', MASTER_USE_GTID = slave_pos"
                )
                self._run(server, "STOP SLAVE", change, "START SLAVE")

    def _accounts(self) -> list[str]:
        accounts = {
            "promoter": f"{PROMOTER_RIGHTS} ON *.*",
            "hosts": f"ALL ON {self._schema}.*",
            **{f"replica_{name}": "REPLICATION SLAVE ON *.*" for name in self.servers},
        }
        statements = [f"CREATE DATABASE IF NOT EXISTS {self._schema}"]
        for user, rights in accounts.items():
            password = f" IDENTIFIED BY '{self._password_file.read_text()}'" if user.startswith("replica_") else ""
            statements += [
                f"CREATE USER IF NOT EXISTS {user}@'127.0.0.1'{password}",
                f"GRANT {rights} TO {user}@'127.0.0.1'",
            ]
        return [*statements, f"GRANT SELECT, INSERT, UPDATE, CREATE ON {self._schema}.* TO promoter@'127.0.0.1'"]

    @staticmethod
    def _run(server: MariaDb, *statements: str) -> None:
        """Run statements as root, in one session."""
        connection = pymysql.connect(user="root", autocommit=True, **server.connect_arguments)
        with connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
