"""The options of a host in a cluster, `[cluster]` and `[databases.NAME]`, and the rules between them and others.

Knows nothing of the content of files, of ZooKeeper or of databases.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from pydantic import field_validator

from foqs.options.auth_options import AuthOptions
from foqs.options.database_tls import check_database_tls
from foqs.options.options import (
    MS,
    DatabaseTls,
    InvalidOption,
    Options,
    ServerOptions,
    StoreUrl,
    is_address,
    option,
    parse_store_url,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

DATABASES_MAX: Final = 1_000
DATABASE_NAME_PATTERN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,126}", re.ASCII)
"""The form of a database's name, which appears in commands, documents and metrics."""
_ROOT_PATTERN: Final = re.compile(r"(/[A-Za-z0-9_.-]{1,100}){1,10}", re.ASCII)


class ClusterOptions(Options):
    """Several hosts that share shards. `foqs cluster init` and `foqs shard` say which shards there are."""

    zookeeper: str = option(
        "",
        "addresses",
        "The ZooKeeper servers, HOST:PORT,HOST:PORT. Empty: this host is alone and owns every shard of its "
        "store. Otherwise it owns the shards that the plan assigns to it, in [databases]. Of [store] only "
        "statement_timeout_ms and unsafe_durability apply then.",
        change="Set it if several hosts should serve one queue.",
    )
    root: str = option(
        "/foqs",
        "path",
        "The path of this cluster's data in ZooKeeper. Each cluster needs its own.",
        change="Change it for a second cluster in the same ZooKeeper.",
    )
    session_timeout_ms: int = option(
        6_000,
        MS,
        "A host that ZooKeeper does not hear from for this time loses its shards to other hosts. A short "
        "timeout restores service soon after a crash, but moves shards whenever the network fails for longer than that.",
        3_000,
        120_000,
        change="Raise it if foqs_cluster_sessions_total rises although no host failed: a pause was longer than the timeout. Lower it if "
        "shards of a host that died must be served sooner.",
    )
    lost_primary_ms: int = option(
        5_000,
        MS,
        "Of a database with a server in each region and the policy semi-sync: if neither the elected host nor a replica has "
        "heard from the primary for this time, a replica takes its place. Nothing that was acknowledged is lost by that, also "
        "if the primary lives.",
        1_000,
        3_600_000,
        change="Raise it if a primary usually comes back sooner, as after a restart: its shards are not served meanwhile.",
    )
    credentials_file: str = option(
        "",
        "path",
        "A file with USER:PASSWORD in one line, which only its owner may read. Only this user can then read "
        "and write the data in ZooKeeper. It is the same for all hosts. Empty: anybody who reaches ZooKeeper "
        "can.",
        change="Set it if anything but the hosts reaches ZooKeeper.",
    )
    token_file: str = option(
        "",
        "path",
        "With [auth]: a file with the secret that this host shows to other hosts, which only its owner may "
        "read. The secret belongs to a principal with admin = true in their configuration. Empty: the host "
        "shows its certificate, server.tls_cert_file.",
        change="Set it if hosts have no certificates.",
    )
    ca_file: str = option(
        "",
        "path",
        "With server.tls_cert_file: the CA of the hosts' certificates, PEM. Empty: the CAs of the system.",
        change="Set it if the hosts' certificates are of a CA that the system does not trust.",
    )
    zookeeper_tick_ms: int = option(
        2_000,
        MS,
        "tickTime of the ZooKeeper servers, or more. A server reports to its leader up to one tick late that "
        "a host is alive, so a host counts its session as shorter by one tick. At most half of the session is "
        "subtracted.",
        10,
        60_000,
        change="Set it if the servers have another tickTime.",
    )
    peer_topics_max: int = option(
        1_000_000,
        "topics",
        "The topics of all other hosts that this host remembers, about 250 bytes each. One topic at two hosts "
        "counts twice. Further topics are not listed by this host, and only their own host delivers their "
        "items.",
        1_000,
        100_000_000,
        change="Raise it if foqs_gossip_topics reaches it and there is memory. Lower it if the host is short of memory.",
    )

    @field_validator("zookeeper")
    @classmethod
    def _check_servers(cls, text: str) -> str:
        for part in text.split(",") if text else ():
            if not is_address(part):
                raise InvalidOption(f"{part!r} is not HOST:PORT", "write zk1:2181,zk2:2181,zk3:2181")
        return text

    @field_validator("root")
    @classmethod
    def _check_root(cls, text: str) -> str:
        if not _ROOT_PATTERN.fullmatch(text) or ".." in text or "/." in text:
            raise InvalidOption(f"{text!r} is not a path of letters, digits, -, _ and .", "write /foqs or /foqs/test")
        return text


class DatabaseOptions(Options):
    """One database."""

    url: str = option(
        "",
        "URL",
        "As store.url: mysql://user@host:port/database, or sqlite:FOLDER if all hosts are on one machine.",
        change="Write it for each database that the layout names.",
    )
    password_file: str = option("", "path", "As store.password_file.", change="By the same signs as in [store].")
    tls: DatabaseTls = option(
        "disabled",
        "disabled, required, verify_ca or verify_identity",
        "As store.tls.",
        change="By the same signs as in [store].",
    )
    tls_ca_file: str = option("", "path", "As store.tls_ca_file.", change="By the same signs as in [store].")
    tls_cert_file: str = option("", "path", "As store.tls_cert_file.", change="By the same signs as in [store].")
    tls_key_file: str = option("", "path", "As store.tls_key_file.", change="By the same signs as in [store].")
    servers: str = option(
        "",
        "NAME=HOST:PORT,...",
        "The servers of a database that has one in each region, all of them. User, schema, password and TLS are those of "
        "the url, which is used until the database has an entry.",
        change="Set it at all hosts before foqs database adopt.",
    )
    promoter_user: str = option(
        "", "name", "The account of promoters at these servers. Hosts do not use it.", change="Set it with servers."
    )
    promoter_password_file: str = option(
        "", "path", "A file with the password of that account.", change="Set it with servers."
    )
    replica_user: str = option(
        "replica",
        "name",
        "Server NAME receives from the others as the user replica_user_NAME, here replica_NAME.",
        change="Set it if the accounts have other names.",
    )
    replica_password_file: str = option(
        "", "path", "A file with the password of these accounts.", change="Set it with servers."
    )
    replica_tls_ca_file: str = option(
        "",
        "path",
        "With servers, and tls = verify_ca or verify_identity: the CA of the servers' certificates, as a path at the servers "
        "themselves. With these and with required the servers receive from each other over TLS.",
        change="Set it with servers and tls.",
    )

    max_lag_ms: int = option(
        10_000,
        MS,
        "With servers and the policy async: if no replica has what was enqueued this long ago, shards accept no new items "
        "until one has. Acks go on. So a lost primary costs at most the enqueues of this time.",
        3_000,
        86_400_000,
        change="Lower it if less may be lost. Raise it if enqueues fail with OVERLOADED when foqs_replica_lag_seconds reaches it "
        "and more may be lost.",
    )

    @field_validator("servers")
    @classmethod
    def _check_servers(cls, text: str) -> str:
        parse_server_addresses(text)
        return text

    @property
    def parsed_url(self) -> StoreUrl:
        return parse_store_url(self.url)

    @property
    def server_addresses(self) -> dict[str, tuple[str, int]]:
        """The host and port of each of `servers`, by its name."""
        return parse_server_addresses(self.servers)


def parse_server_addresses(text: str) -> dict[str, tuple[str, int]]:
    """Return the host and port of each server by its name. Raises InvalidOption."""
    found: dict[str, tuple[str, int]] = {}
    for part in text.split(",") if text else ():
        name, _, address = part.strip().partition("=")
        if not DATABASE_NAME_PATTERN.fullmatch(name) or not is_address(address):
            raise InvalidOption(f"{part.strip()!r} is not NAME=HOST:PORT", "write a=db-a:3306,b=db-b:3306")
        if name in found:
            raise InvalidOption(f"{name} is named twice", "give each server its own name")
        host, _, port = address.rpartition(":")
        found[name] = host.strip("[]"), int(port)
    return found


Databases = dict[str, DatabaseOptions]
DATABASES_OPTION: Final = option(
    {},
    "tables",
    "Each [databases.NAME] has url (mysql://user@host:port/database) and password_file (a path), and tls, "
    "tls_ca_file, tls_cert_file and tls_key_file as in [store]. A database with a server in each region also has servers "
    "(NAME=HOST:PORT,NAME=HOST:PORT), promoter_user, promoter_password_file, replica_user, replica_password_file, "
    "replica_tls_ca_file and max_lag_ms. None of this is in ZooKeeper. The "
    "layout of a cluster refers to a database by its name. Every host needs all of them, and each host "
    "may have its own URL for them.",
    change="Add one if the databases are short of disk or CPU.",
)


def check_cluster_options(
    cluster: ClusterOptions, databases: Mapping[str, DatabaseOptions], server: ServerOptions
) -> None:
    """Refuse a cluster without databases, and databases or hosts that others cannot reach. Raises InvalidOption."""
    if len(databases) > DATABASES_MAX:
        raise InvalidOption(f"{len(databases)} databases are more than {DATABASES_MAX}", "name fewer", "databases")
    _check_servers_are_of_one_database(databases)
    for name, options in databases.items():
        key = f"databases.{name}"
        if not DATABASE_NAME_PATTERN.fullmatch(name):
            raise InvalidOption(
                "the name of a database has only letters, digits, -, _ and .", "choose another", f"databases.{name!a}"
            )
        if not options.url:
            raise InvalidOption("it has no URL", "write mysql://user@host:port/database", f"{key}.url")
        try:
            kind = options.parsed_url.kind
        except InvalidOption as error:
            raise InvalidOption(str(error.problem), error.remedy, f"{key}.url") from None
        if kind == "memory":
            raise InvalidOption(
                "other hosts cannot reach the memory of this one", "write mysql://user@host:port/database", f"{key}.url"
            )
        if options.servers and kind != "mysql":
            raise InvalidOption("only a database of MySQL or MariaDB has servers", "leave it empty", f"{key}.servers")
        if options.servers and options.promoter_user and options.promoter_user == options.parsed_url.user:
            raise InvalidOption(
                "hosts use this account too: it could write a server that is read-only, and promoters end its connections",
                "make an account of its own for promoters",
                f"{key}.promoter_user",
            )
        check_database_tls(options, key)
        _check_replication_tls(options, key)
    if not cluster.zookeeper:
        return
    if not databases:
        raise InvalidOption("a cluster needs a database", 'add [databases.main] with url = "mysql://…"', "databases")
    if not server.advertise and server.host in ("", "0.0.0.0", "::"):  # noqa: S104
        raise InvalidOption(
            f"other hosts cannot call {server.host or 'every address'}",
            "set the HOST:PORT at which they reach this host",
            "server.advertise",
        )


def _check_replication_tls(options: DatabaseOptions, key: str) -> None:
    """Refuse servers that would check certificates without a CA, and a CA that nothing uses."""
    checks = bool(options.servers) and options.tls in ("verify_ca", "verify_identity")
    if checks and not options.replica_tls_ca_file:
        raise InvalidOption(
            f"{key}.tls is {options.tls}, and the servers have no CA for the certificates of each other",
            "name the file that has it at the database servers",
            f"{key}.replica_tls_ca_file",
        )
    if options.replica_tls_ca_file and not checks:
        raise InvalidOption(
            "the servers check no certificate",
            f"set {key}.servers, and {key}.tls to verify_identity or verify_ca, or leave this empty",
            f"{key}.replica_tls_ca_file",
        )


def _check_servers_are_of_one_database(databases: Mapping[str, DatabaseOptions]) -> None:
    """Refuse a server that two databases name: it is promoted as a whole, and their promoters would end each other's work."""
    databases_by_address: dict[tuple[str, int], str] = {}
    for name, options in databases.items():
        for server, address in options.server_addresses.items():
            if (other := databases_by_address.setdefault(address, name)) != name:
                raise InvalidOption(
                    f"{server} at {address[0]}:{address[1]} is also a server of databases.{other}",
                    "give each database servers of its own, or put the shards of both into one database",
                    f"databases.{name}.servers",
                )


def check_hosts_can_authenticate(cluster: ClusterOptions, server: ServerOptions, auth: AuthOptions) -> None:
    """Refuse hosts that require authentication and cannot authenticate to each other. Raises InvalidOption."""
    if cluster.zookeeper and auth.enabled and not (cluster.token_file or server.tls_client_ca_file):
        raise InvalidOption(
            "this host could not authenticate to the other hosts, to which it forwards calls",
            "name the file of an administrator's secret, or let hosts show certificates: server.tls_client_ca_file",
            "cluster.token_file",
        )
