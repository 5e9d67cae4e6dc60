"""The identity of a cluster is drawn once, and replaced by nobody but an administrator."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

import pytest

from shardmgr.cluster_identity import DOCUMENT, draw_identity, read_identity, set_identity
from shardmgr.registry.port import Registry, RegistryFailed
from tests.support.local_ensemble import LocalEnsemble


def with_registries(story: Callable[[Registry, Registry], Awaitable[None]]) -> None:
    async def main() -> None:
        ensemble = LocalEnsemble(None, lambda: 0)
        one, two = ensemble.registry(6_000), ensemble.registry(6_000)
        for registry in (one, two):
            await registry.open()
        await story(one, two)
        for registry in (one, two):
            await registry.close()

    asyncio.run(main())


def test_hosts_that_start_at_once_agree_on_one_identity() -> None:
    async def story(one: Registry, two: Registry) -> None:
        assert await read_identity(one) is None
        first, second = await asyncio.gather(draw_identity(one), draw_identity(two))
        assert first == second == await read_identity(one) == await draw_identity(two)

    with_registries(story)


def test_identity_is_replaced_and_keeps_what_a_newer_version_wrote_beside_it() -> None:
    async def story(one: Registry, two: Registry) -> None:
        await one.replace(DOCUMENT, b'{"format": 1, "identity": "0123456789abcdef", "since": 7}', None)
        await set_identity(two, "f" * 16)
        found = await one.read(DOCUMENT)
        assert found is not None
        assert json.loads(found.data) == {"format": 1, "identity": "f" * 16, "since": 7}

    with_registries(story)


def test_identity_is_set_where_there_is_none() -> None:
    async def story(one: Registry, two: Registry) -> None:
        await set_identity(one, "f" * 16)
        assert await draw_identity(two) == "f" * 16

    with_registries(story)


@pytest.mark.parametrize(
    "data", [b"{", b'{"format": 1, "identity": "x"}', b'{"format": 2, "identity": "0123456789abcdef"}']
)
def test_damaged_identity_is_an_error_and_stays(data: bytes) -> None:
    async def story(one: Registry, two: Registry) -> None:
        await one.replace(DOCUMENT, data, None)
        with pytest.raises(RegistryFailed, match="'identity' is damaged"):
            await draw_identity(two)
        found = await one.read(DOCUMENT)
        assert found is not None
        assert found.data == data

    with_registries(story)
