"""A terminal with a shell, for a test that follows a page like a person.

Always true: lines are typed one after the other into a real pseudo-terminal. So
programs format for people, Ctrl-C reaches the foreground program, and variables stay
set. When it closes, programs that still run get the signal of a closed terminal.
Knows nothing of the commands.
"""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import termios
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tests.support.poll import until

_PROMPT: Final = re.compile(r"<ended with (\d+)> \Z")
_STYLE: Final = re.compile(r"\x1b\[[0-9;]*m")
_LINES_AND_COLUMNS: Final = (50, 120)
_LINE_TIMEOUT_S: Final = 180.0
_CLOSE_TIMEOUT_S: Final = 30.0


class Terminal:
    """Args:
    folder: where its shell is.
    environment: of the shell.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", *_LINES_AND_COLUMNS, 0, 0))
        modes = termios.tcgetattr(slave)
        modes[3] &= ~termios.ECHO
        termios.tcsetattr(slave, termios.TCSANOW, modes)
        quiet = {"PS1": r"<ended with $?> ", "PS2": "", "HISTFILE": "", "NO_COLOR": "1", "TERM": "xterm"}
        self._shell = subprocess.Popen(
            ["bash", "--noprofile", "--norc", "--noediting", "-i"],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=folder,
            env={**environment, **quiet},
            start_new_session=True,
            preexec_fn=_take_terminal,
        )
        os.close(slave)
        self._text = ""
        self._begin = 0
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()
        until(lambda: self.ended is not None, "the shell is there")

    @property
    def shown(self) -> str:
        """Return the output since the last typed line, without styles and the next prompt."""
        return _STYLE.sub("", _PROMPT.sub("", self._text[self._begin :]))

    @property
    def ended(self) -> int | None:
        """The exit code of the last line; None while it runs."""
        found = _PROMPT.search(self._text, self._begin)
        return None if found is None else int(found[1])

    def start(self, line: str) -> None:
        """Type a line. Does not wait for its command."""
        assert self.ended is not None, f"what was typed before still runs: {self.shown}"
        self._begin = len(self._text)
        self._write(line.encode() + b"\n")

    def run(self, line: str, timeout_s: float = _LINE_TIMEOUT_S) -> tuple[int, str]:
        """Run a line, and return its exit code and its output."""
        self.start(line)
        return self.wait(timeout_s)

    def wait(self, timeout_s: float = _LINE_TIMEOUT_S) -> tuple[int, str]:
        """Wait for the last command, and return its exit code and its output."""
        until(lambda: self.ended is not None, "what was typed ends", timeout_s)
        assert self.ended is not None
        return self.ended, self.shown

    def interrupt(self) -> None:
        """Ctrl-C."""
        self._write(b"\x03")

    def close(self) -> None:
        """Closes it, and returns when its shell is gone."""
        self._shell.send_signal(signal.SIGHUP)
        try:
            self._shell.wait(_CLOSE_TIMEOUT_S)
        finally:
            self._shell.kill()
            self._shell.wait()
            self._reading.join(_CLOSE_TIMEOUT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            error.add_note(f"the end of what the terminal shows:\n{self._text[-2_000:]}")
        self.close()

    def _write(self, data: bytes) -> None:
        os.write(self._master, data)

    def _read(self) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        try:
            while data := os.read(self._master, 65_536):
                self._text += decoder.decode(data).replace("\r", "")
        except OSError:
            pass  # the other side is closed
        finally:
            os.close(self._master)


def _take_terminal() -> None:
    """In the shell's process, before it is one: the terminal is its own, and Ctrl-C ends what runs there."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
