"""A real host with an SQS server, and boto3's client for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import boto3
from botocore.config import Config

from foqs_client import Client, Namespace
from foqs_contract.size_ceilings import PAYLOAD_BYTES_CEILING
from tests.support.aio import run
from tests.support.ports import free_port
from tests.support.processes import WAITING_HOST, RestartableHost

ACCOUNT: Final = "123456789012"
OTHER_ACCOUNT: Final = "000000000000"
"""Of the same namespace; the first account is that of calls which name no queue."""
REGION: Final = "eu-west-1"
WEST: Final = "us-west-2"
WEST_NAMESPACE: Final = "west"
OPTIONS_OF_TWO_REGIONS: Final[Mapping[str, Any]] = {f'sqs.accounts."{WEST}:{ACCOUNT}"': WEST_NAMESPACE}
"""The account has queues of its own in the region `WEST`; `make_west` makes their namespace."""
OPTIONS: Final[Mapping[str, Any]] = {
    f"sqs.accounts.{ACCOUNT}": "default",
    f"sqs.accounts.{OTHER_ACCOUNT}": "default",
    "namespace.payload_bytes_max": PAYLOAD_BYTES_CEILING,
    "shard.breaker_latency_ms_max": 60_000,
}
"""The circuit breaker does not open on a slow machine: a client that asks once would be refused."""


class SqsHost(RestartableHost):
    """One host on SQLite with an SQS server."""

    def __init__(
        self, folder: Path, options: Mapping[str, Any] = MappingProxyType({}), command: Sequence[str] = WAITING_HOST
    ) -> None:
        self.sqs_port = free_port()
        all_options = {"server.sqs_port": self.sqs_port, **OPTIONS, **options}
        super().__init__(folder, f"sqlite:{folder / 'data'}", all_options, command)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.sqs_port}"


def make_west(host: SqsHost, token: str | None = None) -> None:
    """Make the namespace of the region `WEST`. `token`: of an administrator."""

    async def make() -> None:
        async with Client(host.address, token=token) as client:
            await client.create_namespace(Namespace(WEST_NAMESPACE))

    run(make())


def sqs_client(
    endpoint: str,
    access_key: str = "key",
    secret: str = "secret",
    verify: Path | None = None,
    region: str = REGION,
    **config: Any,
) -> Any:
    """Return boto3's client for an endpoint; `verify` is the file of a CA, `config` is botocore's."""
    return boto3.client(
        "sqs",
        endpoint_url=endpoint,
        region_name=region,
        aws_access_key_id=access_key,
        aws_secret_access_key=secret,
        verify=None if verify is None else str(verify),
        config=Config(**config),
    )
