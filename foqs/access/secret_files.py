"""Reads secrets from files.

Always true: the file of a secret is a regular file of this process's user or of
root. Only its owner may write it; only its owner, and the group of a file of root, may
read it. No error text holds any of its content. Knows nothing of what a secret is for.
"""

from __future__ import annotations

import os
import stat
from typing import Final

from foqs_contract.secret_file_mode import UnsafeFileMode, check_secret_file_mode

SECRET_BYTES_MIN: Final = 16
"""The least length of a token. A shorter one could be guessed."""
TOKENS_MAX: Final = 8
"""Limit of the tokens in one file. Two are needed while a secret is replaced."""
TOKENS_BYTES_MAX: Final = 4_096
"""Limit of a file of tokens."""


class UnusableFile(Exception):
    """A file cannot be used. `problem` says why, `remedy` what to do; neither shows its content."""

    def __init__(self, file: str, problem: str, remedy: str) -> None:
        super().__init__(f"{file}: {problem}; {remedy}")
        self.file = file
        self.problem = problem
        self.remedy = remedy


def read_secret(file: str, bytes_max: int) -> bytes:
    """Read a file that only its owner may use.

    Raises:
        UnusableFile: it cannot be read, is longer than `bytes_max`, or others may use it.
    """
    try:
        # O_NONBLOCK: opening a pipe would wait for its other end.
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            status = os.fstat(descriptor)
            data = os.read(descriptor, bytes_max + 1) if stat.S_ISREG(status.st_mode) else None
        finally:
            os.close(descriptor)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UnusableFile(file, f"it cannot be read ({reason})", "name a file that this user may read") from None
    if data is None:
        raise UnusableFile(file, "it is not a regular file", "name a file that holds the secret")
    if status.st_uid not in (os.geteuid(), 0):
        raise UnusableFile(
            file, f"it belongs to another user (uid {status.st_uid})", f"run: chown {os.geteuid()} {file}"
        )
    try:
        check_secret_file_mode(file, status)
    except UnsafeFileMode as error:
        raise UnusableFile(file, error.problem, error.remedy) from None
    if len(data) > bytes_max:
        raise UnusableFile(file, f"it is longer than {bytes_max} bytes", "name a file that holds only the secret")
    return data


def read_password(file: str, bytes_max: int = 1_024) -> str:
    """Return the password that is the only line of a file, without its line end. Raises `UnusableFile`."""
    data = read_secret(file, bytes_max)
    try:
        text = data.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        text = ""
    if not text or "\n" in text:
        raise UnusableFile(
            file, "it is not one line of text", f"write only the password into it, and run: chmod 600 {file}"
        )
    return text


def read_tokens(file: str) -> list[bytes]:
    """Read the tokens of a principal, one a line. All are valid, so that a secret can be replaced without a gap.

    Raises:
        UnusableFile: the file cannot be used or is empty, or its tokens are too many, too short or malformed.
    """
    lines = read_secret(file, TOKENS_BYTES_MAX).splitlines()
    while lines and not lines[-1].strip():
        lines.pop()
    remedy = "write one secret a line into it: openssl rand -hex 32"
    if not lines:
        raise UnusableFile(file, "it is empty", remedy)
    if len(lines) > TOKENS_MAX:
        raise UnusableFile(file, f"it has {len(lines)} lines, but may hold at most {TOKENS_MAX} secrets", remedy)
    for number, line in enumerate(lines, 1):
        if len(line) < SECRET_BYTES_MIN:
            raise UnusableFile(
                file, f"line {number} has {len(line)} bytes, but a secret has at least {SECRET_BYTES_MIN}", remedy
            )
        if line != line.strip() or not line.isascii() or not line.decode().isprintable():
            raise UnusableFile(file, f"line {number} is not printable ASCII without spaces around it", remedy)
    return lines
