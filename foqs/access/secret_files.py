"""Secrets from files.

Always true: a secret's file is a regular one, belongs to this process's user or
to root, and nobody else may read or write it; no text of an error holds any of
its content. Knows nothing of what a secret is for.
"""

from __future__ import annotations

import os
import stat
from typing import Final

SECRET_BYTES_MIN: Final = 16
"""Of a token. Shorter ones can be guessed."""
TOKENS_MAX: Final = 8
"""In one file: the old and the new one while a secret is changed, and some to spare."""
TOKENS_BYTES_MAX: Final = 4_096
"""Of a file of tokens."""


class UnusableFile(Exception):
    """A file that cannot be used. `problem` says why, `remedy` what to do; neither tells its content."""

    def __init__(self, file: str, problem: str, remedy: str) -> None:
        super().__init__(f"{file}: {problem}; {remedy}")
        self.file = file
        self.problem = problem
        self.remedy = remedy


def read_secret(file: str, bytes_max: int) -> bytes:
    """The bytes of a file that nobody else may use.

    Raises:
        UnusableFile: it cannot be read, is longer than `bytes_max`, or others may use it.
    """
    try:
        # A pipe would make the open wait for its other end.
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            found = os.fstat(descriptor)
            data = os.read(descriptor, bytes_max + 1) if stat.S_ISREG(found.st_mode) else None
        finally:
            os.close(descriptor)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UnusableFile(file, f"it cannot be read ({reason})", "name a file that this user may read") from None
    if data is None:
        raise UnusableFile(file, "it is not a regular file", "name a file that holds the secret")
    if found.st_uid not in (os.geteuid(), 0):
        raise UnusableFile(
            file, f"it belongs to another user (uid {found.st_uid})", f"run: chown {os.geteuid()} {file}"
        )
    if found.st_mode & 0o077:
        mode = stat.S_IMODE(found.st_mode)
        raise UnusableFile(file, f"others than its owner may use it (mode {mode:o})", f"run: chmod 600 {file}")
    if len(data) > bytes_max:
        raise UnusableFile(file, f"it is longer than {bytes_max} bytes", "name a file that holds the secret alone")
    return data


def read_password(file: str, bytes_max: int = 1_024) -> str:
    """One line of text, without its line end. Raises UnusableFile."""
    data = read_secret(file, bytes_max)
    try:
        text = data.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        text = ""
    if not text or "\n" in text:
        raise UnusableFile(
            file, "it is not one line of text", f"write the password into it, alone, and run: chmod 600 {file}"
        )
    return text


def read_tokens(file: str) -> list[bytes]:
    """The tokens of a principal: a line each, all of them valid, so that a secret can be changed without a gap.

    Raises:
        UnusableFile: the file cannot be used, is empty, or holds too many, or too short ones.
    """
    lines = read_secret(file, TOKENS_BYTES_MAX).splitlines()
    while lines and not lines[-1].strip():
        lines.pop()
    remedy = "write one secret a line into it: openssl rand -hex 32"
    if not lines:
        raise UnusableFile(file, "it is empty", remedy)
    if len(lines) > TOKENS_MAX:
        raise UnusableFile(file, f"it has {len(lines)} lines, and {TOKENS_MAX} secrets are the most", remedy)
    for place, line in enumerate(lines, 1):
        if len(line) < SECRET_BYTES_MIN:
            raise UnusableFile(
                file, f"line {place} has {len(line)} bytes, and {SECRET_BYTES_MIN} are the least", remedy
            )
        if line != line.strip() or not line.isascii() or not line.decode().isprintable():
            raise UnusableFile(file, f"line {place} holds more than printable ASCII without spaces around", remedy)
    return lines
