"""Checks on the driver, before any task starts, that the hosts accept a write.

Holds `check_hosts` for a write, `check_stream` for a batch of a stream, and
`check_key_window`. Always true: they write nothing. Knows nothing of rows.
"""

from __future__ import annotations

import asyncio
import time
from random import Random
from typing import Final

from foqs_client.admin_calls import Namespace
from foqs_client.client import Client
from foqs_client.errors import FoqsError, Unreachable
from foqs_client.spark.item_columns import SinkError
from foqs_client.spark.options import SinkOptions
from foqs_client.spark.row_items import NAMESPACE_DEFAULT
from foqs_client.spark.row_keys import KEY_SLOTS
from foqs_client.spark.sender import BACKOFF_S_MAX, BACKOFF_S_MIN, open_client
from foqs_client.types import Item, Routing
from foqs_contract.backoff import Backoff

TIMEOUT_MS: Final = 10_000
CHECK_VALID_S: Final = 60.0
"""A process that has checked a stream checks the same stream again after this time."""

_checked_streams: dict[tuple[tuple[object, ...], bool], tuple[float, int]] = {}
"""(when, number of groups) of the last check of a stream. Spark uses one process for many batches."""


def check_hosts(options: SinkOptions, has_namespaces: bool) -> int:
    """Check that the hosts accept a write. Return the number of groups of key slots: that of the shards with key slots.

    Args:
        options: the options of the write.
        has_namespaces: the rows have a column namespace. Only a namespace in the options is checked then.

    Raises:
        SinkError: no host can be reached, or a host refuses the principal or the namespace.
    """
    try:
        routing = asyncio.run(_read_routing(options, checked_namespace(options, has_namespaces)))
    except FoqsError as error:
        raise _refusal(error) from None
    return _group_count(routing)


def check_stream(options: SinkOptions, has_namespaces: bool) -> int:
    """Check that the hosts accept a batch, and return as `check_hosts`. Waits up to `timeout_ms` for hosts that are away.

    Args:
        options: the options of the stream.
        has_namespaces: the rows have a column namespace. Only a namespace in the options is checked then.

    Raises:
        SinkError: as `check_hosts`; or the key window of the namespace is too short.
    """
    identity = options.identity(), has_namespaces
    moment, group_count = _checked_streams.get(identity, (-CHECK_VALID_S, 0))
    if time.monotonic() - moment < CHECK_VALID_S:
        return group_count
    try:
        group_count = asyncio.run(_check_stream(options, checked_namespace(options, has_namespaces)))
    except FoqsError as error:
        raise _refusal(error) from None
    _checked_streams.clear()
    _checked_streams[identity] = time.monotonic(), group_count
    return group_count


def checked_namespace(options: SinkOptions, has_namespaces: bool) -> str | None:
    """Return the namespace that the driver checks; None if only the rows name it."""
    if has_namespaces and "namespace" not in options.defaults:
        return None
    return str(options.defaults.get("namespace", NAMESPACE_DEFAULT))


def check_key_window(settings: Namespace, window_ms_min: int) -> None:
    """Check that a namespace remembers keys for long enough. Raises SinkError with the command that sets it."""
    window_ms = settings.key_window_ms or 0
    if window_ms < window_ms_min:
        wanted = _duration(window_ms_min)
        raise SinkError(
            f"the namespace {settings.name!r} remembers keys for {_duration(window_ms)}, and a batch may be run again "
            f"{wanted} after it began (option replay_window_ms), which would enqueue its rows twice: run "
            f"foqs namespace update {settings.name} --key-window {wanted}"
        )


async def _check_stream(options: SinkOptions, namespace: str | None) -> int:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + options.timeout_ms / 1_000
    backoff = Backoff(BACKOFF_S_MIN, BACKOFF_S_MAX, Random(), (1.0, 1.25))
    attempts = 0
    while True:
        try:
            routing = await _read_routing(options, namespace)
            if namespace is not None:
                async with open_client(options, namespace) as client:
                    settings = await client.get_namespace(timeout_ms=min(TIMEOUT_MS, options.timeout_ms))
                check_key_window(settings, options.replay_window_ms)
            return _group_count(routing)
        except FoqsError as error:
            wait_s = backoff.pause_s(attempts, error.retry_after_ms or 0)
            if not error.may_succeed_later or loop.time() + wait_s >= deadline:
                raise
        attempts += 1
        await asyncio.sleep(wait_s)


async def _read_routing(options: SinkOptions, namespace: str | None) -> Routing:
    timeout_ms = min(TIMEOUT_MS, options.timeout_ms)
    async with open_client(options, namespace or NAMESPACE_DEFAULT) as client:
        routing = await client.routing(timeout_ms=timeout_ms)
        if namespace is not None:
            await _check_grant(client, timeout_ms)
    return routing


async def _check_grant(client: Client, timeout_ms: int) -> None:
    """Send an item without a topic. It is always refused, but only after the namespace and the grant were checked."""
    try:
        await client.enqueue([Item(topic="", idempotency_key="~")], timeout_ms=timeout_ms)
    except FoqsError as error:
        if not error.may_succeed_later:
            raise


def _group_count(routing: Routing) -> int:
    shards = sum(1 for shard in routing.shards if shard.key_slots)
    return max(1, min(shards, KEY_SLOTS))


def _refusal(error: FoqsError) -> SinkError:
    if isinstance(error, Unreachable):
        return SinkError(f"no host can be reached: {error.message}")
    return SinkError(f"the hosts refuse this write: {error}")


def _duration(ms: int) -> str:
    """Return milliseconds as text for an option of `foqs`, such as 10m."""
    for unit_ms, unit in ((3_600_000, "h"), (60_000, "m"), (1_000, "s")):
        if ms and ms % unit_ms == 0:
            return f"{ms // unit_ms}{unit}"
    return f"{ms}ms"
