"""Repeats a command that shows something: the option `--watch`.

Always true: a terminal shows the last result only; elsewhere the results follow
each other, with `-o json` one per line; Ctrl-C ends it with exit code 0; a failure
ends it as it would end the command. Knows nothing of the results.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from foqs.cli.host_session import HostSession
from foqs.cli.values import DURATION

if TYPE_CHECKING:
    from foqs_client import Client

INTERVAL_DEFAULT: Final = "2s"

T = TypeVar("T")


def watch_option(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the option `--watch`, as `watch_ms`: None, or the time between two results."""

    @click.option(
        "--watch",
        "watch_ms",
        is_flag=False,
        flag_value=INTERVAL_DEFAULT,
        type=DURATION,
        default=None,
        metavar="[TIME]",
        help=f"Repeat every TIME (default {INTERVAL_DEFAULT}) until Ctrl-C; with -o json each result is one line.",
    )
    @functools.wraps(command)
    def with_watch(*args: Any, watch_ms: int | None, **options: Any) -> None:
        if watch_ms is not None and watch_ms < 1:
            raise click.UsageError("--watch needs a time of more than 0, such as 2s.")
        command(*args, watch_ms=watch_ms, **options)

    return with_watch


def run_watchable(
    session: HostSession,
    watch_ms: int | None,
    read: Callable[[Client], Awaitable[T]],
    show: Callable[[HostSession, T], None],
) -> None:
    """Run `read`, and `show` with its result: once, or every `watch_ms`."""
    if watch_ms is None:
        show(session, session.run(read))
        return
    shown = replace(session, output_format="line") if session.output_format == "json" else session

    async def repeat(client: Client) -> None:
        while True:
            found = await read(client)
            click.clear()
            show(shown, found)
            await asyncio.sleep(watch_ms / 1_000)

    try:
        session.run(repeat)
    except KeyboardInterrupt:
        return
