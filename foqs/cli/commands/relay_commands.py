"""The commands of an outbox: run a relay, show what the outbox holds, decide about parked rows, and its tables.

Always true: a relay works only after a host has answered and the tables were read. It waits for a host or a server that is
away; one sentence says what else failed. Messages and the log are written to standard error. Knows nothing of how rows are relayed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import click
from click.core import ParameterSource

from foqs.cli.host_session import (
    UNHEALTHY,
    UNREACHABLE,
    CommandFailed,
    HostSession,
    error_sentence,
    exit_code,
    fail_on_errors,
    host_call_options,
)
from foqs.cli.output import (
    Column,
    Format,
    bytes_fields,
    confirm,
    output_option,
    print_message,
    short_text,
    show_fields,
    show_rows,
    write_data,
)
from foqs.cli.values import DURATION
from foqs.runtime.durations import format_duration

if TYPE_CHECKING:
    from foqs_client.outbox.outbox_connection import OutboxConnection
    from foqs_client.outbox.parked_rows import ParkedView
    from foqs_client.outbox.user_databases import UserDatabase

T = TypeVar("T")

_PARKED_SHOWN_MAX: Final = 100
_PAGE_ROWS: Final = 500

_COLUMNS: Final[list[Column]] = [
    ("ID", lambda row: str(row["id"])),
    ("TOPIC", lambda row: row["topic"]),
    ("GROUP", lambda row: row["row_group"] or "-"),
    ("AGE", lambda row: format_duration(row["age_ms"])),
    ("MAY BE QUEUED", lambda row: "yes" if row["may_be_queued"] else "no"),
    ("RESENT", lambda row: "yes" if row["is_resent"] else "no"),
    ("REASON", lambda row: row["reason"]),
    ("PAYLOAD", lambda row: short_text(row, "payload")),
]
_DECISION_COLUMNS: Final[list[Column]] = [
    ("ID", lambda row: str(row["id"])),
    ("OUTCOME", lambda row: row["error"] or "ok"),
]


@dataclass(slots=True, frozen=True)
class _Outbox:
    """The outbox of the command line or the environment."""

    url: str | None
    prefix: str

    @property
    def database(self) -> UserDatabase:
        """The user's database. Raises CommandFailed, UsageError."""
        from foqs_client.outbox.user_databases import user_database

        if self.url is None:
            raise click.UsageError("Name the user's database with --database URL or FOQS_OUTBOX_DATABASE.")
        with _sentences():
            return user_database(self.url)

    @contextmanager
    def opened(self) -> Iterator[OutboxConnection]:
        """A connection to the outbox. A statement that fails ends the command."""
        from foqs_client.outbox.outbox_connection import OutboxConnection, TablesUnavailable

        database = self.database
        with closing(OutboxConnection(database.connect, database.dialect, self.prefix)) as tables, _sentences():
            try:
                yield tables
            except TablesUnavailable as error:
                from foqs.cli.commands.relay_run import unreadable

                raise CommandFailed(unreadable(database.name, error), UNREACHABLE) from None


def _outbox_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of an outbox, and the resulting `_Outbox`.

    An option may be before a command of the group or after it; the one after it counts.
    """

    @click.option(
        "--database",
        envvar="FOQS_OUTBOX_DATABASE",
        metavar="URL",
        show_envvar=True,
        help="The user's database, as postgresql://USER:PASSWORD@HOST/DATABASE, mysql://... or sqlite:////PATH. Other "
        "users of this machine see a command line: put a password into the environment.",
    )
    @click.option(
        "--prefix",
        envvar="FOQS_OUTBOX_PREFIX",
        default="foqs_",
        show_default=True,
        show_envvar=True,
        help="The beginning of the names of the outbox' tables.",
    )
    @functools.wraps(command)
    def with_outbox(*arguments: Any, database: str | None, prefix: str, **options: Any) -> None:
        outbox = _Outbox(_given("database", database), _given("prefix", prefix))
        command(*arguments, outbox=outbox, **options)

    return with_outbox


def _refuse_options_of_relay(context: click.Context) -> None:
    """Raise UsageError if an option is given before a command that would not read it."""
    for option in context.command.params:
        is_given = context.get_parameter_source(option.name or "") is ParameterSource.COMMANDLINE
        if is_given and option.name not in ("database", "prefix"):
            raise click.UsageError(
                f"{option.opts[-1]} before {context.invoked_subcommand} has no effect; give it after the command, or leave it out."
            )


def _given(name: str, value: T) -> T:
    """Return the value of an option, or the one before the command if the command line has none after it."""
    context = click.get_current_context()
    group = context.parent
    is_named = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    return value if is_named or group is None or name not in group.params else cast(T, group.params[name])


@click.group(
    "relay",
    invoke_without_command=True,
    epilog="\b\nExamples:\n  foqs relay --database sqlite:////var/lib/shop.db\n  foqs relay -n orders --http-port 7422\n"
    "  foqs relay --inbox\n  foqs relay status\n  foqs relay resend 17 --may-double",
)
@_outbox_options
@click.option(
    "--http-port",
    type=click.IntRange(0, 65_535),
    default=None,
    help="Serve /livez, /readyz and /metrics at this port.",
)
@click.option("--http-host", default="127.0.0.1", show_default=True, help="The address for --http-port.")
@click.option(
    "--stop-timeout", type=DURATION, default="30s", show_default=True, help="How long a stop waits for replies."
)
@click.option(
    "--progress", type=DURATION, default="10s", show_default=True, help="How often counts are logged; 0: never."
)
@click.option(
    "--inbox",
    "prunes_inbox",
    is_flag=True,
    help="Also prune the inbox: ack the items of old rows again, and delete the rows whose items are gone.",
)
@click.option(
    "--inbox-keep",
    type=DURATION,
    default="7d",
    show_default=True,
    help="How long each row of the inbox stays at least; 1d or more.",
)
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info")
@host_call_options
@click.pass_context
def relay(context: click.Context, /, session: HostSession, outbox: _Outbox, **options: Any) -> None:
    """Enqueue the committed rows of an outbox until SIGTERM, SIGHUP or Ctrl-C.

    One relay works on an outbox at a time. Another one waits. It takes over at once when the first one is stopped, and
    within about ten seconds when that dies.

    A relay that starts while no host or no database answers waits for them, and logs what is missing.

    A stop sends no new row, waits for replies and deletes what is in the queue. A second signal ends at once: rows
    without a reply are sent again, and make no second item.

    With a COMMAND: show what the outbox holds, or decide about parked rows.
    """
    if context.invoked_subcommand is not None:
        _refuse_options_of_relay(context)
        return
    from foqs.cli.commands.relay_run import run_relay

    run_relay(session, outbox.database, outbox.prefix, **options)


@relay.command(
    epilog="\b\nExamples:\n  foqs relay status\n  foqs relay status --database sqlite:////var/lib/shop.db -o json"
)
@_outbox_options
@output_option
def status(outbox: _Outbox, form: Format) -> None:
    """Show what the outbox holds, whether a relay works on it, and its first parked rows.

    It takes up to three seconds, in which a relay that works writes a round. Exit code 5 if none does.
    """
    from dataclasses import asdict

    from foqs_client.outbox.outbox_figures import read_figures
    from foqs_client.outbox.parked_rows import list_parked
    from foqs_client.outbox.relay_owner import watch_owner

    with outbox.opened() as tables:
        figures = read_figures(tables)
        rows = [_parked_view(each) for each in list_parked(tables, _PARKED_SHOWN_MAX)]
        owner = watch_owner(tables)
    shown = {**asdict(figures), "epoch": owner.epoch, "round": owner.round, "relay_works": owner.is_working}
    if form == "table":
        show_fields(shown, form)
        if rows:
            write_data()
            show_rows(rows, _COLUMNS, form)
    else:
        show_rows([{**shown, "parked_rows": rows}], [], form)
    if not owner.is_working:
        click.get_current_context().exit(UNHEALTHY)


@relay.command(
    epilog="\b\nExamples:\n  foqs relay resend 17 18\n  foqs relay resend --all\n  foqs relay resend 17 --may-double"
)
@click.argument("ids", metavar="ROW...", nargs=-1, type=click.IntRange(1))
@click.option("--all", "is_all", is_flag=True, help="All parked rows that are not being sent again.")
@click.option(
    "--may-double", is_flag=True, help="Also rows that may be in the queue already: a second item may follow."
)
@_outbox_options
@output_option
def resend(ids: Sequence[int], is_all: bool, may_double: bool, outbox: _Outbox, form: Format) -> None:
    """Let the relay send parked rows again."""
    from foqs_client.outbox import parked_rows

    _decide(ids, is_all, outbox, form, functools.partial(parked_rows.resend, may_double=may_double))


@relay.command(epilog="\b\nExamples:\n  foqs relay drop 17 18\n  foqs relay drop --all --yes")
@click.argument("ids", metavar="ROW...", nargs=-1, type=click.IntRange(1))
@click.option("--all", "is_all", is_flag=True, help="All parked rows that are not being sent again.")
@click.option("--yes", is_flag=True, help="With --all, ask nothing.")
@_outbox_options
@output_option
def drop(ids: Sequence[int], is_all: bool, yes: bool, outbox: _Outbox, form: Format) -> None:
    """Delete parked rows for good. Their items are never enqueued."""
    from foqs_client.outbox import parked_rows

    if is_all and not yes:
        confirm(f"Delete all parked rows of the outbox {outbox.prefix}outbox in {outbox.database.name}?")
    _decide(ids, is_all, outbox, form, parked_rows.drop)


@relay.command(
    epilog="\b\nExamples:\n  foqs relay tables --database postgresql://shop@db/shop\n  foqs relay tables --create"
)
@click.option("--create", is_flag=True, help="Create the tables that are missing, in place of showing the SQL.")
@_outbox_options
def tables(create: bool, outbox: _Outbox) -> None:
    """Show the SQL that creates the tables of an outbox, or create them."""
    from foqs_client.outbox.outbox_sql import create_tables

    dialect = outbox.database.dialect
    with _sentences():
        statements = create_tables(dialect, outbox.prefix)
    if not create:
        write_data("\n\n".join([f"{statement};" for statement in statements]))
        return
    with outbox.opened() as opened:
        for statement in statements:
            opened.execute(statement)


@contextmanager
def _sentences() -> Iterator[None]:
    from foqs_client import FoqsError

    try:
        yield
    except FoqsError as error:
        raise CommandFailed(error_sentence(error), exit_code(error)) from None


def _parked_view(row: ParkedView) -> dict[str, Any]:
    return {
        "id": row.id,
        "topic": row.topic,
        "row_group": row.row_group,
        "age_ms": row.age_ms,
        "may_be_queued": row.may_be_queued,
        "is_resent": row.is_resent,
        "reason": row.reason,
        **bytes_fields("payload", row.payload),
    }


def _decide(
    ids: Sequence[int],
    is_all: bool,
    outbox: _Outbox,
    form: Format,
    decide: Callable[[OutboxConnection, int], None],
) -> None:
    """Decide about rows one by one, show the outcome of each, and fail with the first error."""
    from foqs_client import FoqsError

    if bool(ids) == is_all:
        raise click.UsageError("Name rows as foqs relay status shows them, or give --all.")
    errors: dict[int, FoqsError] = {}
    rows: list[dict[str, Any]] = []
    print_message(f"{outbox.prefix}outbox in {outbox.database.name}")
    with outbox.opened() as tables:
        for place, id in enumerate(_undecided(tables) if is_all else ids, 1):
            try:
                decide(tables, id)
            except FoqsError as error:
                errors[place] = error
            rows.append({"id": id, "error": None if place not in errors else errors[place].message})
    show_rows(rows, _DECISION_COLUMNS, form)
    fail_on_errors(errors, len(rows))


def _undecided(tables: OutboxConnection) -> Iterator[int]:
    from foqs_client.outbox.parked_rows import list_parked

    above = 0
    while page := list_parked(tables, _PAGE_ROWS, above):
        above = page[-1].id
        yield from [row.id for row in page if not row.is_resent]
