"""The user's database as a relay reaches it: by its URL and a driver that blocks.

Holds `UserDatabase`. Always true: only the driver of the URL is imported; a connection commits each statement, and
gives up after a time if the server does not answer; no message shows a password. The URLs are those of SQLAlchemy:
`postgresql://`, `mysql://` or `mariadb://`, `sqlite:///FILE`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from foqs_client.errors import InvalidArgument
from foqs_client.outbox.outbox_sql import Dialect, dialect_named

CONNECT_TIMEOUT_S: Final = 10
ANSWER_TIMEOUT_S: Final = 60
"""More than a session of a relay waits for a lock."""
_LOCK_TIMEOUT_S: Final = 5.0
_MYSQL_OPTIONS: Final = ("unix_socket", "charset", "ssl_ca", "ssl_cert", "ssl_key", "ssl_verify_identity")


@dataclass(slots=True, frozen=True)
class UserDatabase:
    """A database by its URL. Use `user_database`."""

    dialect: Dialect
    _url: SplitResult

    @property
    def name(self) -> str:
        """The URL without a password and options."""
        return f"{self.dialect.value}://{self._url.netloc.rpartition('@')[2]}{self._url.path}"

    def connect(self) -> Any:
        """Open a connection that commits each statement. Raises what the driver raises."""
        return _CONNECT[self.dialect](self._url)


def user_database(url: str) -> UserDatabase:
    """Return the database of a URL. A driver in it, as in `mysql+pymysql://`, is ignored.

    Raises:
        InvalidArgument: it is no such URL, has an option that is not known, or its driver is not installed.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        raise InvalidArgument(
            "this is no URL; give one such as postgresql://user:password@host/database or sqlite:////var/lib/shop.db",
            field="database",
        )
    dialect = dialect_named(scheme.partition("+")[0])
    parts = urlsplit(f"{dialect.value}://{rest}")
    if not parts.path.strip("/") and not (dialect is Dialect.POSTGRES and parts.query):
        raise InvalidArgument("the URL names no database; add it after the last /", field="database")
    unknown = [name for name, _ in parse_qsl(parts.query) if name not in _MYSQL_OPTIONS]
    if dialect is Dialect.MYSQL and unknown:
        raise InvalidArgument(
            f"{unknown[0]} is no option of this URL; these are: {', '.join(_MYSQL_OPTIONS)}", field="database"
        )
    _check_driver(dialect)
    return UserDatabase(dialect, parts)


def _check_driver(dialect: Dialect) -> None:
    try:
        if dialect is Dialect.POSTGRES:
            import psycopg  # noqa: F401
        elif dialect is Dialect.MYSQL:
            import pymysql  # noqa: F401
    except ImportError as error:
        raise InvalidArgument(
            f"the driver of this database is missing ({error.name}); run: pip install 'foqs[outbox]'", field="database"
        ) from None


def _connect_sqlite(url: SplitResult) -> Any:
    import sqlite3

    path = Path(unquote(url.path.removeprefix("/"))).absolute()
    # mode=rw: a file that is not there is an error, and not a new database
    return sqlite3.connect(f"{path.as_uri()}?mode=rw", uri=True, isolation_level=None, timeout=_LOCK_TIMEOUT_S)


def _connect_postgres(url: SplitResult) -> Any:
    import psycopg

    timeouts = {"connect_timeout": CONNECT_TIMEOUT_S, "tcp_user_timeout": ANSWER_TIMEOUT_S * 1_000}
    return psycopg.connect(url.geturl(), autocommit=True, **timeouts)


def _connect_mysql(url: SplitResult) -> Any:
    import pymysql

    options: dict[str, Any] = {"charset": "utf8mb4", **dict(parse_qsl(url.query))}
    if "ssl_verify_identity" in options:
        options["ssl_verify_identity"] = options["ssl_verify_identity"].lower() in ("1", "true")
    return pymysql.connect(
        host=url.hostname or "localhost",
        port=url.port or 3306,
        user=unquote(url.username or ""),
        password=unquote(url.password or ""),
        database=unquote(url.path.strip("/")),
        autocommit=True,
        connect_timeout=CONNECT_TIMEOUT_S,
        read_timeout=ANSWER_TIMEOUT_S,
        write_timeout=ANSWER_TIMEOUT_S,
        **options,
    )


_CONNECT: Final = {
    Dialect.SQLITE: _connect_sqlite,
    Dialect.POSTGRES: _connect_postgres,
    Dialect.MYSQL: _connect_mysql,
}
