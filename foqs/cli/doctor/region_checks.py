"""Doctor's checks of the servers of a database that has one in each region: which servers they are, and their accounts.

Always true: nothing is changed, and no connection of a promoter is ended. Each server is one finding, or one for each thing that
is wrong there. Knows nothing of how findings are shown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from foqs.access.host_secrets import promoter_passwords
from foqs.options.config import Config
from foqs.store.factories import mysql_settings
from foqs.store.mysql.expected_server import SeenServer, see_server
from foqs.store.mysql.mysql_driver import MysqlLink, MysqlLinkLost, MysqlSettings, ServerError
from foqs.store.mysql.replication_kinds import replication_sql_of
from foqs.store.mysql.replication_sql import ACCOUNT_LOCKED_CODES, IDENTITY, READ_GRANTS, text
from foqs.telemetry.findings import Finding
from shardmgr.primary import Primary


@dataclass(slots=True, frozen=True)
class SeenAccounts:
    """What doctor sees of one server.

    Attributes:
        hosts: as the account of hosts sees it, or why it does not.
        promoter: why the account of promoters cannot be used; empty: it can.
        promoter_grant: the statement that mends it; empty: another remedy does.
        replicas: by server, why it cannot receive from this one with its account.
        locked: those of them whose account is locked.
    """

    hosts: SeenServer | str
    promoter: str
    replicas: dict[str, str]
    locked: frozenset[str] = frozenset()
    promoter_grant: str = ""


async def check_servers(config: Config, database: str, entry: Primary | None) -> list[Finding]:
    """Check all servers that the configuration names; none if it names none."""
    names = config.databases[database].server_addresses
    seen = await asyncio.gather(*(_see(config, database, name) for name in names))
    by_name = dict(zip(names, seen, strict=True))
    findings = [finding for name, each in by_name.items() for finding in server_findings(name, each, database, entry)]
    unknown = [] if entry is None else sorted(entry.servers.keys() - names)
    if unknown:
        detail = f"the entry has servers whose addresses this host does not know: {', '.join(unknown)}"
        findings.append(Finding("Servers", "bad", detail, f"add them to databases.{database}.servers at all hosts"))
    return findings + shared_numbers(by_name)


def server_findings(name: str, seen: SeenAccounts, database: str, entry: Primary | None) -> list[Finding]:
    """Return what is wrong with one server and its accounts, or that nothing is."""
    check, key = f"Server {name}", f"databases.{database}"
    hosts = seen.hosts
    if isinstance(hosts, str):
        if entry is not None and _is_removed(name, entry):
            remedy = f"start it, and let it rejoin: foqs database rejoin {database} {name}"
            return [
                Finding(check, "warning", f"hosts do not reach it; it does not acknowledge any more: {hosts}", remedy)
            ]
        remedy = f"start it, or correct {key}.servers, or make the account of {key}.url there"
        return [Finding(check, "bad", f"hosts do not reach it: {hosts}", remedy)]
    found: list[Finding] = []
    server = None if entry is None else entry.servers.get(name)
    if server is not None and server.server_id != hosts.server_id:
        detail = f"its server_id is {hosts.server_id}, and the entry names {server.server_id}: this is another server"
        found.append(
            Finding(check, "bad", detail, f"correct {key}.servers, or server_id in the server's configuration")
        )
    if hosts.passes_read_only:
        detail = "the account of hosts may write it although it is read-only, so a move would not stop them"
        remedy = "REVOKE READ_ONLY ADMIN and ALL PRIVILEGES ON *.* from this account; grant ALL on the schema"
        found.append(Finding(check, "bad", detail, remedy))
    if entry is not None and name != entry.server and not hosts.is_read_only:
        detail = f"it accepts commits, and {entry.server} is the primary"
        found.append(
            Finding(check, "bad", detail, f"set read_only = 1 there; then foqs database rejoin {database} {name}")
        )
    if seen.promoter:
        detail = f"promoters cannot use it, so it is neither kept nor promoted: {seen.promoter}"
        remedy = f"correct {key}.promoter_user and its password file, and its grants (docs/regions.md, Accounts)"
        if seen.promoter_grant:
            remedy = f"as root there: {seen.promoter_grant} (docs/regions.md, Accounts)"
        found.append(Finding(check, "bad", detail, remedy))
    for replica, problem in sorted(seen.replicas.items()):
        detail = f"{replica} cannot receive from it: {problem}"
        remedy = f"make this account with REPLICATION SLAVE, or correct {key}.replica_password_file"
        if replica in seen.locked:
            remedy = "ALTER USER ... ACCOUNT UNLOCK there as root"
            if entry is not None and _is_removed(replica, entry):
                continue  # as it must be until it rejoins
        found.append(Finding(check, "bad", detail, remedy))
    if found:
        return found
    role = "the primary" if entry is not None and name == entry.server else "closed" if hosts.is_read_only else "open"
    locked = ", ".join(sorted(seen.locked))
    note = f"; locked is the account of {locked}, which does not acknowledge any more" if locked else ""
    return [
        Finding(
            check, "ok", f"server_id {hosts.server_id}, {role}; hosts, promoters and replicas have their accounts{note}"
        )
    ]


def _is_removed(server: str, entry: Primary) -> bool:
    """Return whether a server neither is the primary nor acknowledges for it, as one that was removed or is lost."""
    return server in entry.servers and server != entry.server and server not in entry.ackers


def shared_numbers(seen: dict[str, SeenAccounts]) -> list[Finding]:
    """Return a finding for each `server_id` that several servers have."""
    names: dict[int, list[str]] = {}
    for name, each in seen.items():
        if isinstance(each.hosts, SeenServer):
            names.setdefault(each.hosts.server_id, []).append(name)
    return [
        Finding(
            "Servers",
            "bad",
            f"{', '.join(sharing)} have the server_id {number}, so nobody knows which of them wrote a transaction",
            "give each server its own server_id, and correct servers that name one server twice",
        )
        for number, sharing in sorted(names.items())
        if len(sharing) > 1
    ]


async def _see(config: Config, database: str, name: str) -> SeenAccounts:
    options = config.databases[database]
    host, port = options.server_addresses[name]
    hosts = replace(mysql_settings(config, database), host=host, port=port, unix_socket=None)
    promoter_password, replica_password = promoter_passwords(config, database)
    promoter = replace(hosts, user=options.promoter_user, password=promoter_password, database="")
    others = [other for other in options.server_addresses if other != name]
    logins = [
        replace(hosts, user=f"{options.replica_user}_{other}", password=replica_password, database="")
        for other in others
    ]
    seen, (problem, grant), problems = await asyncio.gather(
        _see_as_host(hosts),
        promoter_problem(promoter),
        asyncio.gather(*(_replica_problem(login) for login in logins)),
    )
    found = {other: each for other, each in zip(others, problems, strict=True) if each is not None}
    locked = frozenset(other for other, each in found.items() if each.is_locked)
    return SeenAccounts(seen, problem, {other: each.text for other, each in found.items()}, locked, grant)


async def _see_as_host(settings: MysqlSettings) -> SeenServer | str:
    try:
        link = await MysqlLink.connect(settings)
        try:
            return await see_server(link, settings.database)
        finally:
            await link.close()
    except (ServerError, MysqlLinkLost) as error:
        return str(error)


async def promoter_problem(settings: MysqlSettings) -> tuple[str, str]:
    """Return why this account cannot steer replication, and the grant that it lacks; empty: it has what can be seen without a change."""
    try:
        link = await MysqlLink.connect(settings)
        try:
            (identity,) = await link.run(IDENTITY)
            sql = replication_sql_of(text(identity.rows[0][0]))
            (grants,) = await link.run(READ_GRANTS)
            missing = [right for right in sql.promoter_rights if not _has(grants.rows, right)]
            if missing:
                rights = ", ".join(missing)
                return f"{settings.user} lacks {rights}", f"GRANT {rights} ON *.* TO {settings.user}@'...'"
            await link.run(sql.read_variables, sql.read_counters, sql.read_reception)
        finally:
            await link.close()
    except (ServerError, MysqlLinkLost) as error:
        return str(error), ""
    return "", ""


@dataclass(slots=True, frozen=True)
class _AccountProblem:
    text: str
    is_locked: bool = False


async def _replica_problem(settings: MysqlSettings) -> _AccountProblem | None:
    """Return why a replica cannot receive with this account; None: it can."""
    try:
        link = await MysqlLink.connect(settings)
        try:
            (grants,) = await link.run(READ_GRANTS)
        finally:
            await link.close()
    except ServerError as error:
        return _AccountProblem(str(error), error.code in ACCOUNT_LOCKED_CODES)
    except MysqlLinkLost as error:
        return _AccountProblem(str(error))
    names = ("REPLICATION SLAVE", "REPLICATION REPLICA")
    is_able = any(_has(grants.rows, right) for right in names)
    return None if is_able else _AccountProblem(f"{settings.user} lacks REPLICATION SLAVE")


def _has(grants: Sequence[Sequence[object]], right: str) -> bool:
    """Return whether a reply to SHOW GRANTS has a right for the whole server. ALL is written out unless all of it was granted."""
    for row in grants:
        rights, _, rest = text(row[0]).upper().removeprefix("GRANT ").partition(" ON *.* TO ")
        # Versions write _ or a space.
        named = {each.strip().replace("_", " ") for each in rights.split(",")}
        if rest and (right.replace("_", " ") in named or "ALL PRIVILEGES" in named):
            return True
    return False
