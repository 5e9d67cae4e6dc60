"""The common part of the commands that call a host: its address, the output format, and failures.

Always true: a command calls hosts through the public client only, and fails with
one sentence and one of the exit codes below. Knows nothing of single commands.
Modules that only some commands need are imported when they run, so that every
command starts fast.
"""

from __future__ import annotations

import asyncio
import functools
import os
import signal
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import click
from click.core import ParameterSource

from foqs.cli.output import Format, output_option, print_message
from foqs.cli.values import DURATION

if TYPE_CHECKING:
    from foqs.options.config import Config
    from foqs_client import Client, Enqueued, FoqsError, Outcome

OK: Final = 0
ERROR: Final = 1
USAGE: Final = 2
UNREACHABLE: Final = 3
NOT_FOUND: Final = 4
UNHEALTHY: Final = 5

DEFAULT_ADDRESS: Final = "foqs://127.0.0.1:7411"

_EXIT_BY_CODE: Final = {
    "INVALID_ARGUMENT": USAGE,
    "LIMIT_EXCEEDED": USAGE,
    "NOT_FOUND": NOT_FOUND,
    "NAMESPACE_NOT_FOUND": NOT_FOUND,
}

OpenClient: TypeAlias = "Callable[[str, str, int], AbstractAsyncContextManager[Client]]"
"""(address, namespace, timeout_ms) -> an open client."""

WAIT_NOTED_S: Final = 1.0
"""A command that waits longer for a host says so."""
_RANGES_NAMED_MAX: Final = 10

T = TypeVar("T")


class CommandFailed(Exception):
    """Ends the command with a sentence and an exit code."""

    def __init__(self, message: str, code: int = ERROR) -> None:
        super().__init__(message)
        self.code = code


@dataclass(slots=True, frozen=True)
class HostSession:
    """The host to call, and the format of the output.

    Attributes:
        timeout_ms: the time for each call.
        is_namespace_named: True if the command line names the namespace; false if it is that of the environment or the default.
    """

    address: str
    namespace: str
    output_format: Format
    timeout_ms: int
    open_client: OpenClient
    is_namespace_named: bool = False

    def run(self, work: Callable[[Client], Awaitable[T]], runner: Callable[[Any], T] = asyncio.run) -> T:
        """Open a client, run `work` with it in an event loop of `runner`, and close it.

        Raises:
            CommandFailed: the host cannot be reached, or the call failed.
        """
        from foqs_client import FoqsError

        async def run_work() -> T:
            async with self.open_client(self.address, self.namespace, self.timeout_ms) as client:
                noting = asyncio.ensure_future(self._note_wait(client))
                try:
                    return await work(client)
                finally:
                    noting.cancel()

        try:
            return runner(run_work())
        except FoqsError as error:
            raise CommandFailed(error_sentence(error), exit_code(error)) from None
        except ValueError as error:
            raise CommandFailed(f"{error}", USAGE) from None

    async def _note_wait(self, client: Client) -> None:
        """Say that the command waits, if no host has answered after `WAIT_NOTED_S`."""
        await asyncio.sleep(WAIT_NOTED_S)
        if not client.is_connected:
            print_message(f"waiting for a host at {self.address}")


def run_until_signal(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in an event loop of its own. SIGTERM and SIGHUP cancel it, as Ctrl-C does, and then end the process.

    A second signal ends the process at once, also while a write waits for a reader.
    """
    received: list[int] = []

    async def run_work() -> T:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def on_signal(number: int, _frame: object) -> None:
            received.append(number)
            if len(received) > 1:
                raise SystemExit(128 + number)
            loop.call_soon_threadsafe(task.cancel)

        heeded = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) != signal.SIG_IGN]
        former = {number: signal.signal(number, on_signal) for number in heeded}
        try:
            return await work
        finally:
            for number, handler in former.items():
                signal.signal(number, handler)

    try:
        return asyncio.run(run_work())
    except asyncio.CancelledError:
        if not received:
            raise
        raise SystemExit(128 + received[0]) from None


def exit_code(error: FoqsError) -> int:
    """Return the exit code for an error."""
    from foqs_client import Unreachable

    return UNREACHABLE if isinstance(error, Unreachable) else _EXIT_BY_CODE.get(error.code, ERROR)


def error_sentence(error: FoqsError) -> str:
    """Return a sentence about an error, for a person."""
    from foqs_client import Unreachable

    if isinstance(error, Unreachable):
        # Only if nothing answered. Otherwise the message says what to do, and a host to start is not it.
        advice = " Start one with: foqs dev, or name another with --address." if error.message.endswith("?") else ""
        return f"{error.message}{advice}"
    where = f" ({error.field})" if error.field else ""
    sentence = f"{error.code}{where}: {error.message}"
    if not error.retry_after_ms:
        return sentence
    if sentence.endswith("; try again"):
        return f"{sentence} in {error.retry_after_ms} ms."
    if "try again" in sentence:  # it says what to do first
        return sentence
    stop = "" if sentence.endswith((".", "!", "?")) else "."
    return f"{sentence}{stop} Try again in {error.retry_after_ms} ms."


def fail_on_errors(errors: Mapping[int, FoqsError], total: int) -> None:
    """Fail with the first error of a batch of `total` entries, and name the places of all; do nothing if there is none.

    Args:
        errors: the errors by the place of the entry, from 1, in order.
    """
    if errors:
        failed = f" ({len(errors)} of {total} failed, at {_format_places(list(errors))})" if total > 1 else ""
        first = next(iter(errors.values()))
        raise CommandFailed(error_sentence(first) + failed, exit_code(first))


def errors_by_place(results: Iterable[Outcome | Enqueued], first: int = 1) -> dict[int, FoqsError]:
    """Return the errors among the results of a call, by their places, which begin with `first`."""
    return {place: result.error for place, result in enumerate(results, first) if result.error}


def _format_places(places: Sequence[int]) -> str:
    """Return ascending places as ranges: `places 1, 3 to 5`. Only the first ranges are named."""
    ranges: list[list[int]] = []
    for place in places:
        if ranges and place == ranges[-1][1] + 1:
            ranges[-1][1] = place
        else:
            ranges.append([place, place])
    named = [str(first) if first == last else f"{first} to {last}" for first, last in ranges[:_RANGES_NAMED_MAX]]
    return (
        f"place{'s' if len(places) > 1 else ''} "
        + ", ".join(named)
        + (", ..." if len(ranges) > _RANGES_NAMED_MAX else "")
    )


def configuration(file: Path | None, overrides: Mapping[str, object] | None = None) -> Config:
    """Read the configuration from `file`, the environment and the command line's `overrides`.

    Raises:
        CommandFailed: it is not valid, or a file of a secret cannot be used.
    """
    from foqs.access.host_secrets import check_secrets
    from foqs.options.config import ConfigError, load

    try:
        config = load(file, os.environ, overrides, on_deprecated=print_message)
        check_secrets(config)
    except ConfigError as error:
        raise CommandFailed(str(error), USAGE) from None
    return config


def open_client(
    address: str,
    namespace: str,
    timeout_ms: int,
    token_file: str | None = None,
    ca_file: str | None = None,
    cert_file: str | None = None,
    key_file: str | None = None,
    region: str | None = None,
) -> AbstractAsyncContextManager[Client]:
    """Return the public client. Raises FoqsError for files that cannot be used."""
    from foqs_client import Client, Tls

    tls = Tls(ca_file, cert_file, key_file) if ca_file or cert_file or key_file else None
    return Client(address, namespace=namespace, timeout_ms=timeout_ms, token_file=token_file, region=region, tls=tls)


def _file_option(flag: str, text: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    variable = "FOQS_" + flag.removeprefix("--").replace("-", "_").upper()
    return click.option(flag, envvar=variable, metavar="FILE", show_envvar=True, help=text)


def renamed_option(old: str, new: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the old spelling of an option, which fails with the new one."""

    def refuse(ctx: click.Context, param: click.Parameter, value: object) -> None:
        if value is not None:
            raise click.UsageError(f"{old} was renamed; use {new}.")

    return click.option(old, hidden=True, default=None, expose_value=False, callback=refuse)


def host_call_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of a call, and the resulting `HostSession` as its first argument.

    If the context has an object, it is the `OpenClient` to use.
    """

    @click.option(
        "--address",
        envvar="FOQS_ADDRESS",
        default=DEFAULT_ADDRESS,
        show_default=True,
        show_envvar=True,
        help="The hosts to call, as foqs://HOST:PORT,HOST:PORT or foqss:// for TLS; the ports may be omitted.",
    )
    @click.option(
        "-n",
        "--namespace",
        envvar="FOQS_NAMESPACE",
        default="default",
        show_default=True,
        show_envvar=True,
        help="The namespace of the items.",
    )
    @output_option
    @click.option(
        "--timeout",
        type=DURATION,
        default="10s",
        show_default=True,
        help="The time limit of a call, without its --wait.",
    )
    @_file_option("--token-file", "A file with the token for authentication, which only its owner may read.")
    @_file_option("--ca-file", "With foqss://, the CA of the hosts' certificates.  [default: the system's]")
    @_file_option("--cert-file", "With foqss://, a client certificate, in place of a token.")
    @_file_option("--key-file", "The key of the client certificate, if it is in its own file.")
    @click.option(
        "--client-region",
        envvar="FOQS_CLIENT_REGION",
        metavar="NAME",
        show_envvar=True,
        help="The region of this machine, as in server.region: hosts there get new items first.",
    )
    @functools.wraps(command)
    def with_session(
        address: str,
        namespace: str,
        form: Format,
        timeout: int,
        token_file: str | None,
        ca_file: str | None,
        cert_file: str | None,
        key_file: str | None,
        client_region: str | None,
        **arguments: Any,
    ) -> None:
        if timeout <= 0:
            raise click.UsageError("--timeout must be more than 0.")
        connect = functools.partial(
            open_client,
            token_file=token_file,
            ca_file=ca_file,
            cert_file=cert_file,
            key_file=key_file,
            region=client_region or None,
        )
        context = click.get_current_context()
        is_named = context.get_parameter_source("namespace") is ParameterSource.COMMANDLINE
        session = HostSession(address, namespace, form, timeout, context.obj or connect, is_named)
        command(session, **arguments)

    return with_session
