"""Tests of SIGTERM and SIGHUP in a command that has started servers."""

from __future__ import annotations

import os
import signal

import pytest

from foqs.dev.server_process import stop_on_signals


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signals_act_as_ctrl_c_until_the_end_of_the_block(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), stop_on_signals():
        os.kill(os.getpid(), number)
        signal.pause()
    assert signal.getsignal(number) is before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_stop_a_program_that_a_script_started_in_the_background(number: signal.Signals) -> None:
    """A shell without job control lets background commands ignore SIGINT."""
    before = signal.signal(number, signal.SIG_IGN)
    try:
        with pytest.raises(KeyboardInterrupt), stop_on_signals():
            signal.raise_signal(number)
        assert signal.getsignal(number) is signal.SIG_IGN
    finally:
        signal.signal(number, before)


def test_hangup_stays_ignored_under_nohup() -> None:
    """A program that `nohup` started ignores the end of its terminal."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_on_signals():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
