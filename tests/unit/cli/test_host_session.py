"""Tests of how a command ends: the sentence about an error of a call, and signals."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from foqs.cli import host_session
from foqs.cli.host_session import CommandFailed, HostSession, error_sentence, run_until_signal
from foqs_client import Client, LimitExceeded, Overloaded, Unavailable, Unreachable
from tests.support.aio import run


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        (
            "no connection to a:7411: connection refused; is the host running there?",
            "no connection to a:7411: connection refused; is the host running there? "
            "Start one with: foqs dev, or name another with --address.",
        ),
        (
            "no connection to a:7411: it speaks TLS; begin its address with foqss://",
            "no connection to a:7411: it speaks TLS; begin its address with foqss://",
        ),
        (
            "no reply came in time; nothing was changed, so the call can be repeated",
            "no reply came in time; nothing was changed, so the call can be repeated",
        ),
    ],
)
def test_only_a_host_that_does_not_answer_is_to_be_started(message: str, sentence: str) -> None:
    assert error_sentence(Unreachable(message)) == sentence


def test_pause_before_the_next_try_is_said_once() -> None:
    closing = Unavailable("shard 3 is closing; try again", retry_after_ms=50)
    assert error_sentence(closing) == "UNAVAILABLE: shard 3 is closing; try again in 50 ms."
    crowded = Overloaded("the host has too many calls", retry_after_ms=50)
    assert error_sentence(crowded) == "OVERLOADED: the host has too many calls. Try again in 50 ms."
    full = LimitExceeded("it is full; consume some and try again, or raise its limit", retry_after_ms=1_000)
    assert error_sentence(full) == f"LIMIT_EXCEEDED: {full.message}"


def test_command_that_waits_for_a_host_says_so_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def refuse(*_: object) -> tuple[asyncio.BaseTransport, asyncio.BaseProtocol]:
        raise ConnectionRefusedError

    async def list_topics(client: Client) -> None:
        await client.topics()

    monkeypatch.setattr(host_session, "WAIT_NOTED_S", 0)
    session = HostSession(
        "foqs://a", "default", "table", 100, lambda url, _, ms: Client(url, timeout_ms=ms, connect=refuse)
    )
    with pytest.raises(CommandFailed, match="connection refused"):
        session.run(list_topics, run)
    assert capsys.readouterr().err == "waiting for a host at foqs://a\n"


def test_signal_cancels_the_work_and_ends_the_process() -> None:
    async def work() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.Event().wait()

    with pytest.raises(SystemExit) as ended:
        run_until_signal(work())
    assert ended.value.code == 128 + signal.SIGTERM


def test_second_signal_ends_work_that_blocks_the_loop() -> None:
    async def work() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        raise AssertionError("the second signal had no effect")

    with pytest.raises(SystemExit) as ended:
        run_until_signal(work())
    assert ended.value.code == 128 + signal.SIGTERM


def test_work_that_is_cancelled_by_no_signal_fails_as_it_is() -> None:
    async def work() -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        run_until_signal(work())
