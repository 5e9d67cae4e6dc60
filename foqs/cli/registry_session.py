"""A session with a cluster's registry, for one command.

Holds `open_registry`. Always true: an error of the registry ends the command with a sentence, and the session is
closed. Calls ZooKeeper, but no host.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from foqs.cli.host_session import UNREACHABLE, CommandFailed

if TYPE_CHECKING:
    from foqs.options.config import Config
    from shardmgr.registry.port import Registry


@asynccontextmanager
async def open_registry(config: Config, session_timeout_ms: int | None = None) -> AsyncIterator[Registry]:
    """Yield the cluster's registry; `cluster.zookeeper` must be set.

    Args:
        session_timeout_ms: None: a long one, because nothing waits for the end of the session.

    Raises:
        CommandFailed: the registry cannot be reached, refuses, or has a document that cannot be read.
    """
    from foqs.cluster.connections import COMMAND_SESSION_MS, registry_from_config
    from foqs.runtime.clock import SystemClock
    from shardmgr.model import MalformedDocument
    from shardmgr.registry.port import RegistryError, RegistryUnreachable

    registry = registry_from_config(config, SystemClock(), session_timeout_ms or COMMAND_SESSION_MS)
    try:
        try:
            await registry.open()
        except RegistryError as error:
            raise CommandFailed(str(error), UNREACHABLE) from None
        yield registry
    except RegistryUnreachable as error:
        raise CommandFailed(str(error), UNREACHABLE) from None
    except (RegistryError, MalformedDocument) as error:
        raise CommandFailed(str(error)) from None
    finally:
        await registry.close()
