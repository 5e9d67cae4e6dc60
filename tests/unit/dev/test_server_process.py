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


def test_ignored_signals_stay_ignored() -> None:
    """A program that `nohup` started ignores the end of its terminal."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_on_signals():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
