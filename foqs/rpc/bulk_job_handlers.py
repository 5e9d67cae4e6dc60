"""The calls on bulk jobs: from a decoded request to the jobs, and back to a reply.

Knows nothing of how jobs are kept or worked on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from foqs.options.options import NamespaceOptions
from foqs.queue.bulk_jobs.bulk_jobs import BulkJobs
from foqs.rpc import request_structs
from foqs.rpc.bulk_job_structs import job_struct, parse_control, parse_start
from foqs.rpc.call import Call, Handler
from foqs.rpc.methods import task_handler
from foqs_contract.idl import ttypes
from foqs_contract.request import RequestOfNamespace


def bulk_job_handlers(jobs: BulkJobs, settings_of: Callable[[str], NamespaceOptions]) -> Mapping[str, Handler]:
    """Return the handlers by method name. `settings_of` raises `NamespaceNotFound`."""

    async def start(call: Call) -> ttypes.BulkJob:
        request: ttypes.StartBulkJobRequest = call.request
        namespace = _namespace_name(request)
        started_by = None if call.principal is None else call.principal.name
        spec = parse_start(request, namespace, settings_of(namespace), started_by)
        return job_struct(await jobs.start(spec, call.deadline))

    async def list_jobs(call: Call) -> ttypes.ListBulkJobsReply:
        found = await jobs.list_jobs(_namespace_name(call.request), call.deadline)
        return ttypes.ListBulkJobsReply([job_struct(job) for job in found])

    async def control(call: Call) -> ttypes.BulkJob:
        request: ttypes.ControlBulkJobRequest = call.request
        namespace = _namespace_name(request)
        job_id, command = parse_control(request)
        return job_struct(await jobs.control(namespace, job_id, command, call.deadline))

    return {
        "startBulkJob": task_handler(start),
        "listBulkJobs": task_handler(list_jobs),
        "controlBulkJob": task_handler(control),
    }


def _namespace_name(request: RequestOfNamespace) -> str:
    return request_structs.parse_name(request.namespace_name, "namespace_name")
