"""Compares the limit on the leases of a group that a task declares with the policies of its topics.

Holds `DeclaredLimit`. Always true: nothing is dequeued before the policies were read once, and none of them allowed more than
the task declares. A failure of a host is retried. Knows nothing of items.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Sequence
from typing import Final

from foqs_client.client import Client
from foqs_client.consumer.failure_backoff import FailureBackoff
from foqs_client.errors import FoqsError, InvalidArgument, NotImplementedYet
from foqs_contract.plurals import counted

LIMIT_MAX: Final = 1_000
"""The highest limit that a policy may have."""
CHECK_S: Final = 10.0
"""The pause between two reads of the policies. One that allows more is noticed within this time."""
_FIELD: Final = "group_leases_max"


class DeclaredLimit:
    """The limit that a task declares for its topics.

    Args:
        topics: topics without patterns: a policy is of one topic.
        limit: the most leases of a group that the handler is made for.

    Raises:
        InvalidArgument: a topic is a pattern, or the limit is none.
    """

    def __init__(
        self,
        client: Client,
        exact_topics: Sequence[str],
        limit: int,
        backoff: FailureBackoff,
        *,
        has_patterns: bool,
    ) -> None:
        if has_patterns:
            raise InvalidArgument("a policy is of one topic: name each topic, without a pattern", field=_FIELD)
        if not 1 <= limit <= LIMIT_MAX:
            raise InvalidArgument(f"{limit} is not a number from 1 to {LIMIT_MAX}", field=_FIELD)
        self._client = client
        self._topics = exact_topics
        self._limit = limit
        self._backoff = backoff

    async def check(self) -> None:
        """Read the policies, and return when each topic has one that allows at most the limit.

        Raises:
            InvalidArgument: a topic has no such policy.
            NotImplementedYet: the host is of an older version, without policies.
        """
        while True:
            try:
                policies = await self._client.topic_policies()
                break
            except NotImplementedYet:
                raise
            except FoqsError as error:
                await asyncio.sleep(self._backoff.on_failure(error))
        self._backoff.on_success()
        allowed = {policy.topic: policy.group_leases_max for policy in policies}
        for topic in self._topics:
            limit = allowed.get(topic)
            if limit is None or limit > self._limit:
                raise InvalidArgument(
                    f"this task is made for at most {counted(self._limit, 'leased item')} of a group, and the policy of "
                    f"{topic} allows {'any number' if limit is None else limit}; set the policy with foqs topic policy "
                    f"{shlex.quote(topic)} --group-leases-max {self._limit}, or declare no limit",
                    field=_FIELD,
                )

    async def run(self) -> None:
        """Check again and again until it is cancelled. Raises as `check` does."""
        while True:
            await asyncio.sleep(CHECK_S)
            await self.check()
