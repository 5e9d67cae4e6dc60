"""The pages of bulk jobs, made by the call `bulk` of this host, which asks all hosts of the tier.

Knows nothing of the jobs' records.
"""

from __future__ import annotations

from typing import Final

from foqs.queue.bulk_jobs.bulk_job import BulkJobSpec
from foqs.queue.bulk_jobs.bulk_job_worker import BulkJobPages
from foqs.queue.port import PageResult
from foqs.rpc.bulk_job_structs import bulk_request
from foqs.rpc.in_host_calls import InHostCalls
from foqs_contract.errors import error_from_struct

PAGE_TIMEOUT_S: Final = 10.0


class BulkCallPages(BulkJobPages):
    """Makes the pages of bulk jobs by calls inside the host; see `BulkJobPages`."""

    def __init__(self, calls: InHostCalls) -> None:
        self._calls = calls

    async def make_page(self, spec: BulkJobSpec, cursor: str | None, limit: int) -> PageResult:
        request = bulk_request(spec, cursor, limit, int(PAGE_TIMEOUT_S * 1_000))
        reply = await self._calls.call("bulk", request, PAGE_TIMEOUT_S)
        changed, refused = reply.items or 0, reply.refused or 0
        return PageResult(
            changed=changed,
            refused=refused,
            refusal=None if reply.refusal is None else error_from_struct(reply.refusal, "the host gave no reason"),
            next_cursor=reply.next_cursor,
            matched=changed + refused if reply.matched is None else reply.matched,
        )
