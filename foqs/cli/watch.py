"""Looking again and again: what `--watch` does.

Always true: a terminal shows the last look alone; elsewhere one look follows
the other, with `-o json` a line each; Ctrl-C is the ordinary end, with exit
code 0; a look that fails ends it as it would end the command. Knows nothing of
what is looked at.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from foqs.cli.session import Session
from foqs.cli.values import DURATION

if TYPE_CHECKING:
    from foqs_client import Client

INTERVAL: Final = "2s"

T = TypeVar("T")


def watchable(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command the option `--watch`, as `watch_ms`: None, or the time between two looks."""

    @click.option(
        "--watch",
        "watch_ms",
        is_flag=False,
        flag_value=INTERVAL,
        type=DURATION,
        default=None,
        metavar="[TIME]",
        help=f"Look again each TIME, {INTERVAL} unless given, until Ctrl-C; with -o json a line for each look.",
    )
    @functools.wraps(command)
    def with_watch(*args: Any, watch_ms: int | None, **options: Any) -> None:
        if watch_ms is not None and watch_ms < 1:
            raise click.UsageError("--watch needs a time of more than 0, such as 2s.")
        command(*args, watch_ms=watch_ms, **options)

    return with_watch


def look(
    session: Session,
    watch_ms: int | None,
    work: Callable[[Client], Awaitable[T]],
    draw: Callable[[Session, T], None],
) -> None:
    """Runs `work` and has `draw` show what it found: once, or again each `watch_ms`."""
    if watch_ms is None:
        draw(session, session.run(work))
        return
    shown = replace(session, form="line") if session.form == "json" else session

    async def again(client: Client) -> None:
        while True:
            found = await work(client)
            click.clear()
            draw(shown, found)
            await asyncio.sleep(watch_ms / 1_000)

    try:
        session.run(again)
    except KeyboardInterrupt:
        return
