"""The options of a host in a cluster: `[cluster]` and `[databases.DATABASE_NAME_PATTERN]`; and what must hold between them and the others.

Knows nothing of files' content, of ZooKeeper or of databases.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from pydantic import field_validator

from foqs.options.auth_options import AuthOptions
from foqs.options.options import (
    MS,
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
"""Of a database: it stands in commands, documents and metrics."""
_ROOT_PATTERN: Final = re.compile(r"(/[A-Za-z0-9_.-]{1,100}){1,10}", re.ASCII)


class ClusterOptions(Options):
    """Several hosts that share shards. Which shards there are is told with: foqs cluster init, foqs shard."""

    zookeeper: str = option(
        "",
        "addresses",
        "The servers of the ensemble, HOST:PORT,HOST:PORT. Empty: this host is alone and owns every shard of its store; "
        "otherwise it owns what is planned for it, in the databases below, and [store] is not used.",
    )
    root: str = option("/foqs", "path", "Where in ZooKeeper this cluster keeps all it has; another for each cluster.")
    session_timeout_ms: int = option(
        6_000,
        MS,
        "A host that was not heard of for so long has lost its shards to others. Short means soon served again after a "
        "crash, and shards that move at every hiccup of the network.",
        1_000,
        120_000,
    )
    credentials_file: str = option(
        "",
        "path",
        "USER:PASSWORD, alone in a file that only its owner may read; what is kept in ZooKeeper is then this user's only. "
        "The same for all hosts. Empty: open to whoever reaches ZooKeeper.",
    )
    token_file: str = option(
        "",
        "path",
        "Where hosts ask who calls ([auth]): the secret that this host shows to the others, of a principal with admin = true "
        "in their configurations; alone in a file that only its owner may read. Empty: it shows its own certificate, "
        "server.tls_cert_file.",
    )
    ca_file: str = option(
        "", "path", "With server.tls_cert_file: the CA of the hosts' certificates, PEM. Empty: the system's CAs."
    )
    handover_timeout_ms: int = option(
        10_000,
        MS,
        "An owner that is to hand a shard over has so long to write what waits; then the next one takes it all the same.",
        100,
        10 * 60_000,
    )

    session_margin_ms: int = option(
        500,
        MS,
        "So long before its session can be over a host that ZooKeeper does not answer stops serving. Longer than the clocks "
        "of two machines can differ in a session, and than the longest pause of a host.",
        10,
        30_000,
    )

    zookeeper_tick_ms: int = option(
        2_000,
        MS,
        "tickTime of the ZooKeeper servers, or more. A server passes on to the one that leads at most a tick late that a host "
        "is alive, and a host reckons its session by so much shorter. More than half of a session counts as that half.",
        10,
        60_000,
    )

    gossip_interval_ms: int = option(
        1_000,
        MS,
        "How often a host asks each other one what it has: the topics that have changed, and what is asked of it. For about "
        "so long a list of the tier's topics is behind what other hosts hold, and longer where more topics change in that "
        "time than one answer holds: 10,000 of them make it some two seconds.",
        50,
        60_000,
    )
    gossip_page_topics_max: int = option(
        250,
        "topics",
        "Told in one answer; more of them follow, with pauses between. An answer is made and read in one go, a few "
        "milliseconds for the default.",
        10,
        5_000,
    )
    peer_topics_max: int = option(
        1_000_000,
        "topics",
        "Of all other hosts together that this one remembers, about 250 bytes each; one topic at two hosts counts twice. Those "
        "beyond are not listed by this host, and items of theirs are found by asking their own host only.",
        1_000,
        100_000_000,
    )
    topic_tombstones_max: int = option(
        100_000,
        "topics",
        "That hold nothing here any more and are remembered, so that others can be told. A host that has not heard of one "
        "beyond them is told all topics anew.",
        100,
        10_000_000,
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
        "As store.url: mysql://user@host:port/database; sqlite:ELECTION_FOLDER where all hosts are on one machine.",
    )
    password_file: str = option("", "path", "As store.password_file.")

    @property
    def parsed_url(self) -> StoreUrl:
        return parse_store_url(self.url)


Databases = dict[str, DatabaseOptions]
DATABASES_OPTION: Final = option(
    {},
    "tables",
    "Each [databases.DATABASE_NAME_PATTERN] has url (mysql://user@host:port/database) and password_file (a path). The name is what the shards "
    "of a cluster are told by; every host needs all of them, and each may reach them in its own way.",
)


def check_cluster_options(
    cluster: ClusterOptions, databases: Mapping[str, DatabaseOptions], server: ServerOptions
) -> None:
    """Refuses a cluster without databases, and databases or hosts that others could not reach. Raises Invalid."""
    if len(databases) > DATABASES_MAX:
        raise InvalidOption(f"{len(databases)} are more than {DATABASES_MAX}", "name fewer", "databases")
    for name, options in databases.items():
        key = f"databases.{name}"
        if not DATABASE_NAME_PATTERN.fullmatch(name):
            raise InvalidOption(
                "a database's name is letters, digits, -, _ and .", "choose another", f"databases.{name!a}"
            )
        if not options.url:
            raise InvalidOption("it has no URL", "write mysql://user@host:port/database", f"{key}.url")
        try:
            kind = options.parsed_url.kind
        except InvalidOption as error:
            raise InvalidOption(str(error.problem), error.remedy, f"{key}.url") from None
        if kind == "memory":
            raise InvalidOption(
                "other hosts cannot reach this memory", "write mysql://user@host:port/database", f"{key}.url"
            )
    tick_ms = min(cluster.zookeeper_tick_ms, cluster.session_timeout_ms // 2)
    if cluster.session_margin_ms > (cluster.session_timeout_ms - tick_ms) // 3:
        raise InvalidOption(
            "a host would stop serving at every hiccup of ZooKeeper",
            "set at most a third of cluster.session_timeout_ms without a tick (cluster.zookeeper_tick_ms)",
            "cluster.session_margin_ms",
        )
    if not cluster.zookeeper:
        return
    if not databases:
        raise InvalidOption("a cluster needs a database", 'add [databases.main] with url = "mysql://…"', "databases")
    if not server.advertise and server.host in ("", "0.0.0.0", "::"):  # noqa: S104
        raise InvalidOption(
            f"nobody could be told to call {server.host or 'every address'}",
            "set the HOST:PORT that others reach this host at",
            "server.advertise",
        )


def check_hosts_can_authenticate(cluster: ClusterOptions, server: ServerOptions, auth: AuthOptions) -> None:
    """Refuses hosts that ask who calls and would not know each other. Raises Invalid."""
    if cluster.zookeeper and auth.enabled and not (cluster.token_file or server.tls_client_ca_file):
        raise InvalidOption(
            "the other hosts would not know this one, and hosts pass calls on to each other",
            "name the file of an administrator's secret, or have hosts show certificates: server.tls_client_ca_file",
            "cluster.token_file",
        )
