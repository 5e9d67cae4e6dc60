"""Parses the options that a read and a write share: `.option(name, value)`, which Spark gives as text.

Holds `NumberOption` and `OptionValues`. Always true: unknown options and values out of
range are refused with one sentence. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from foqs_client.addresses import parse_addresses
from foqs_client.errors import InvalidArgument
from foqs_client.spark.job_error import JobError, comma_separated

CLIENT_OPTIONS: Final = ("url", "token", "token_file", "ca_file", "cert_file", "key_file")
"""The options by which a job connects."""


@dataclass(slots=True, frozen=True)
class NumberOption:
    """The default and the range of a numeric option."""

    default: int
    value_min: int
    value_max: int


class OptionValues:
    """The given options of one job.

    Args:
        given: the given values by option name in lower case.
        known: all names that the job has.
        error: the class of the errors to raise; it gets a sentence.
    """

    def __init__(self, given: Mapping[str, str], known: Sequence[str], error: type[JobError]) -> None:
        self._given = given
        self._known = known
        self._error = error

    def check_names(self) -> None:
        """Raise the error if an option is unknown."""
        unknown = sorted(name for name in self._given if name not in self._known)
        if unknown:
            joined = {name.replace("_", ""): name for name in self._known}
            shown = [f"{name} (write {joined[name]})" if name in joined else name for name in unknown]
            raise self._error(f"unknown options: {comma_separated(shown)}; known are {comma_separated(self._known)}")

    def check_client(self) -> None:
        """Raise the error if the job cannot connect with these options."""
        if not self._given.get("url"):
            raise self._error('name the hosts: .option("url", "foqs://127.0.0.1:7411")')
        try:
            parse_addresses(self._given["url"])
        except InvalidArgument as error:
            raise self._error(f"the option url is not an address: {error.message}") from None
        if "token" in self._given and "token_file" in self._given:
            raise self._error("give the option token or token_file, not both")

    def texts(self, names: Sequence[str]) -> dict[str, str]:
        """Return the given ones of these options, by name."""
        return {name: self._given[name] for name in names if name in self._given}

    def numbers(self, allowed: Mapping[str, NumberOption]) -> dict[str, int]:
        """Return the given ones of these whole numbers, by name. Raises the error if one is malformed or out of range."""
        return {
            name: self.number(name, self._given[name], each.value_min, each.value_max)
            for name, each in allowed.items()
            if name in self._given
        }

    def number(self, name: str, text: str, value_min: int, value_max: int) -> int:
        """Return a value as a whole number from `value_min` to `value_max`. Raises the error if it is none."""
        if not is_whole(text) or not value_min <= int(text) <= value_max:
            raise self._error(
                f"the option {name} is {text!r}; it must be a whole number from {value_min} to {value_max}"
            )
        return int(text)

    def flag(self, name: str) -> bool:
        """Return an option that is true or false; false if it is not given. Raises the error for another value."""
        text = self._given.get(name, "false")
        if text.lower() not in ("true", "false"):
            raise self._error(f"the option {name} is {text!r}; it must be true or false")
        return text.lower() == "true"

    def names(self, name: str) -> tuple[str, ...] | None:
        """Return an option that is a list of names, separated by commas; None if it is not given.

        Spaces around a name do not count. Raises the error if a name is empty.
        """
        if name not in self._given:
            return None
        found = [each.strip() for each in self._given[name].split(",")]
        if not all(found):
            raise self._error(f"the option {name} is {self._given[name]!r}; it must be names, separated by commas")
        return tuple(dict.fromkeys(found))


def is_whole(text: str) -> bool:
    """Return whether a text is a whole number of fewer than 20 digits."""
    digits = text.removeprefix("-")
    return digits.isascii() and digits.isdigit() and len(digits) < 20
