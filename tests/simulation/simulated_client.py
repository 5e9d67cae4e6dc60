"""What the clients of the simulation that play one kind of call share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

from tests.support.recording_client import RecordingClient


class SimulatedClient:
    """A client of one namespace.

    Args:
        call: counts a call.
    """

    def __init__(self, client: RecordingClient, rng: Random, call: Callable[[Awaitable[Any]], Awaitable[Any]]) -> None:
        self._client = client
        self._rng = rng
        self._call = call
        self._number = 0
