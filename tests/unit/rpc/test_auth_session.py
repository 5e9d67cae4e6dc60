"""Authentication over real connections: unauthenticated peers may call nothing; principals may call what their grants allow now."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from foqs.access.authenticator import Authenticator
from foqs.rpc.rpc_limits import RpcLimits
from foqs_contract.call_table import CALLS, Permission, Scope
from foqs_contract.errors import ErrorCode
from foqs_contract.idl import Foqs, ttypes
from tests.support.access import ADMIN, ORDERS, EditableGrants, RecordingObserver, gate, keyring
from tests.support.aio import run
from tests.support.builders import rpc_limits
from tests.support.fake_queue import FakeQueue
from tests.support.poll import soon
from tests.support.rpc_server import RawConnection, ServedQueue, call, enqueue, frame, serve_queue

ENQUEUE, CONSUME, PERMIT_ADMIN = Permission.ENQUEUE, Permission.CONSUME, Permission.ADMIN


def wants(wait_ms: int = 0, namespace: str = "default") -> Any:
    return ttypes.DequeueRequest(namespace, [ttypes.TopicCount("t", 1)], wait_ms=wait_ms)


def code_of(result: Any) -> str:
    return ErrorCode(result.failed.error.code).name


async def asked(raw: RawConnection, name: str, request: Any, *, compact: bool = False) -> tuple[str, str | None]:
    """(OK or the error's code, the error's field)."""
    raw.send(call(name, request, compact=compact))
    _, result = await raw.reply(name, compact)
    if result.failed is None:
        return "OK", None
    return code_of(result), result.failed.error.field


async def entered(host: ServedQueue, token: str | None = ORDERS) -> RawConnection:
    raw = await host.raw()
    assert await asked(raw, "authenticate", ttypes.AuthenticateRequest(token)) == ("OK", None)
    return raw


def request_of(name: str, namespace: str | None = "default") -> Any:
    """A request of the call that names a namespace and nothing else."""
    request = getattr(Foqs, f"{name}_args").thrift_spec[1][3][0]()
    need = CALLS[name].requirement
    if need.scope is not Scope.NAMESPACE or namespace is None:
        return request
    outer, dot, inner = need.namespace_field.partition(".")
    value: Any = namespace
    if dot:
        value = ttypes.NamespaceSettings() if outer == "settings" else ttypes.Grant()
        setattr(value, inner, namespace)
    setattr(request, outer, value)
    return request


def with_gate(
    own: Authenticator, main: Callable[[ServedQueue, FakeQueue], Awaitable[None]], limits: RpcLimits | None = None
) -> None:
    async def serve_main() -> None:
        queue = FakeQueue()
        async with serve_queue(queue, limits, authenticator=own) as host:
            await main(host, queue)

    run(serve_main())


# ---------------------------------------------------------- without a principal


@pytest.mark.parametrize("compact", [False, True])
def test_unauthenticated_calls_are_refused_and_do_not_reach_the_queue(compact: bool) -> None:
    async def main(host: ServedQueue, queue: FakeQueue) -> None:
        raw = await host.raw()
        for name in CALLS.keys() - {"authenticate"}:
            request = enqueue("t") if name == "enqueue" else request_of(name)
            assert await asked(raw, name, request, compact=compact) == ("UNAUTHENTICATED", None), name
        assert queue.calls == []
        await raw.close()

    with_gate(gate(EditableGrants(*Permission)), main)


def test_large_frame_of_an_unauthenticated_peer_is_answered_but_not_kept() -> None:
    async def main(host: ServedQueue, queue: FakeQueue) -> None:
        raw = await host.raw()
        sent = call("enqueue", enqueue("t", payload=b"x" * 500_000))
        raw.send(sent[:400_000])
        await soon(lambda: any(connection.is_mid_frame for connection in host.server.connections))
        assert host.server.byte_budget.reserved_bytes == 0
        raw.send(sent[400_000:])
        _, result = await raw.reply("enqueue")
        assert code_of(result) == "UNAUTHENTICATED"
        assert (await asked(raw, "authenticate", ttypes.AuthenticateRequest(ORDERS)))[0] == "OK"
        raw.send(sent)
        _, result = await raw.reply("enqueue")
        assert ErrorCode(result.success.results[0].error.code).name == "LIMIT_EXCEEDED"
        await raw.close()

    with_gate(gate(EditableGrants(ENQUEUE)), main)


def test_unauthenticated_call_is_refused_before_it_is_decoded() -> None:
    async def main(host: ServedQueue, queue: FakeQueue) -> None:
        raw = await host.raw()
        message = call("enqueue", enqueue("t"))[4:]
        raw.send(frame(message[:-3]))
        _, result = await raw.reply("enqueue")
        assert code_of(result) == "UNAUTHENTICATED"
        await raw.close()

    with_gate(gate(), main)


def test_connection_that_does_not_authenticate_is_closed(caplog: pytest.LogCaptureFixture) -> None:
    async def main(host: ServedQueue, queue: FakeQueue) -> None:
        other, stays = await entered(host), await host.raw()
        await asked(stays, "getRouting", ttypes.GetRoutingRequest())
        assert await stays.read_to_end() == b""
        await stays.close()
        assert await asked(other, "getRouting", ttypes.GetRoutingRequest()) == ("OK", None)
        await other.close()

    with caplog.at_level(logging.WARNING):
        with_gate(gate(timeout_s=5.0), main)
    assert "did not authenticate in time" in caplog.text


def test_connections_that_have_not_authenticated_keep_no_other_out() -> None:
    async def main(host: ServedQueue, queue: FakeQueue) -> None:
        first = await entered(host)
        strangers = [await host.raw() for _ in range(2)]
        await soon(lambda: host.server.unauthenticated.amount == 2)
        second = await entered(host)
        assert await strangers[0].read_to_end() == b"", "the oldest"
        third = await entered(host)
        assert host.server.unauthenticated.amount == 0
        surplus = await host.raw()
        assert await asked(surplus, "getRouting", ttypes.GetRoutingRequest()) == ("OVERLOADED", None)
        for raw in (first, second, third):
            assert await asked(raw, "getRouting", ttypes.GetRoutingRequest()) == ("OK", None)
        for raw in (first, *strangers, second, third, surplus):
            await raw.close()

    with_gate(gate(), main, rpc_limits(connections_max=3, reply_grace_ms=200))


# ---------------------------------------------------------------- authentication


def test_token_authenticates_only_its_own_connection() -> None:
    counted = RecordingObserver()

    async def main(host: ServedQueue, queue: FakeQueue) -> None:
        one, two = await host.raw(), await host.raw()
        one.send(call("authenticate", ttypes.AuthenticateRequest(ORDERS)) + call("enqueue", enqueue("t"), 2))
        _, result = await one.reply("authenticate")
        assert result.success.principal == "orders"
        assert (await one.reply("enqueue"))[1].success.results[0].id
        assert (await asked(two, "enqueue", enqueue("t")))[0] == "UNAUTHENTICATED"
        await one.close()
        await two.close()

    with_gate(gate(EditableGrants(ENQUEUE), counted), main)
    assert counted.principals == ["orders"]


def test_authenticate_without_a_token_returns_the_current_principal() -> None:
    async def main(host: ServedQueue, queue: FakeQueue) -> None:
        raw = await host.raw()
        assert (await asked(raw, "authenticate", ttypes.AuthenticateRequest()))[0] == "UNAUTHENTICATED"
        assert (await asked(raw, "authenticate", ttypes.AuthenticateRequest(ADMIN)))[0] == "OK"
        raw.send(call("authenticate", ttypes.AuthenticateRequest()))
        assert (await raw.reply("authenticate"))[1].success.principal == "admin"
        await raw.close()

    with_gate(gate(), main)


def test_wrong_token_is_counted_removes_the_principal_and_is_not_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    counted = RecordingObserver()

    async def main(host: ServedQueue, queue: FakeQueue) -> None:
        raw = await entered(host)
        wrong = "hunter2-" + ORDERS
        assert (await asked(raw, "authenticate", ttypes.AuthenticateRequest(wrong)))[0] == "UNAUTHENTICATED"
        assert (await asked(raw, "enqueue", enqueue("t")))[0] == "UNAUTHENTICATED"
        await raw.close()

    with caplog.at_level(logging.DEBUG):
        with_gate(gate(EditableGrants(ENQUEUE), counted), main)
    assert counted.failures == 1
    assert "wrong token (1 of 3)" in caplog.text
    assert "hunter2" not in caplog.text


def test_after_a_few_wrong_tokens_the_connection_is_closed() -> None:
    counted = RecordingObserver()

    async def main(host: ServedQueue, queue: FakeQueue) -> None:
        raw = await host.raw()
        for _ in range(3):
            assert (await asked(raw, "authenticate", ttypes.AuthenticateRequest("x")))[0] == "UNAUTHENTICATED"
        assert await raw.read_to_end() == b""
        await raw.close()

    with_gate(gate(counted=counted), main)
    assert counted.failures == 3


def test_tokens_sent_together_are_not_checked_together() -> None:
    """The right one among them comes too early, and opens nothing."""
    counted = RecordingObserver()

    async def main(host: ServedQueue, queue: FakeQueue) -> None:
        raw = await host.raw()
        tokens = ["x", "y", ORDERS]
        raw.send(b"".join(call("authenticate", ttypes.AuthenticateRequest(token), n) for n, token in enumerate(tokens)))
        answers = [await raw.reply("authenticate") for _ in tokens]
        assert [seqid for seqid, _ in answers] == [1, 2, 0], "the first was answered late"
        assert {code_of(result) for _, result in answers} == {"UNAUTHENTICATED"}
        assert (await asked(raw, "enqueue", enqueue("t")))[0] == "UNAUTHENTICATED"
        await raw.close()

    with_gate(gate(EditableGrants(ENQUEUE), counted, failure_delay_s=0.1), main)
    assert counted.failures == 1


def test_peer_that_leaves_before_its_reply_leaves_no_state() -> None:
    async def main(host: ServedQueue, queue: FakeQueue) -> None:
        raw = await host.raw()
        raw.send(call("authenticate", ttypes.AuthenticateRequest("x")))
        await soon(lambda: host.server.calls_in_flight == 1)
        await raw.close()
        await soon(lambda: not host.server.connections)

    with_gate(gate(failure_delay_s=60.0), main)


def test_host_without_authentication_accepts_every_token() -> None:
    async def main() -> None:
        async with serve_queue(FakeQueue()) as host:
            raw = await host.raw()
            raw.send(call("authenticate", ttypes.AuthenticateRequest("whatever")))
            _, result = await raw.reply("authenticate")
            assert (result.failed, result.success.principal) == (None, None)
            assert (await asked(raw, "enqueue", enqueue("t")))[0] == "OK"
            await raw.close()

    run(main())


# -------------------------------------------------------------------- permissions


def calls_of(scope: Scope) -> list[str]:
    return [name for name, row in CALLS.items() if row.requirement.scope is scope]


def test_a_namespace_without_a_grant_is_denied_whether_it_exists_or_not() -> None:
    async def main(host: ServedQueue, queue: FakeQueue) -> None:
        raw = await entered(host)
        for name in calls_of(Scope.NAMESPACE):
            need = CALLS[name].requirement
            denied = ("PERMISSION_DENIED", (need.any_of or need.all_of)[0].name)
            assert await asked(raw, name, request_of(name)) == denied, name
            assert await asked(raw, name, request_of(name, "no-such")) == denied, name
            assert await asked(raw, name, request_of(name, None)) == ("INVALID_ARGUMENT", need.namespace_field), name
        assert queue.calls == []
        await raw.close()

    with_gate(gate(), main)


def test_cluster_calls_need_an_administrator() -> None:
    async def main(host: ServedQueue, queue: FakeQueue) -> None:
        raw, admin = await entered(host), await entered(host, ADMIN)
        for name in calls_of(Scope.CLUSTER):
            assert await asked(raw, name, request_of(name)) == ("PERMISSION_DENIED", "admin"), name
            code, _ = await asked(admin, name, request_of(name))
            assert code not in ("PERMISSION_DENIED", "UNAUTHENTICATED"), name
        await raw.close()
        await admin.close()

    with_gate(gate(EditableGrants(*Permission)), main)


def test_administrator_gets_not_found_for_a_missing_namespace() -> None:
    async def main(host: ServedQueue, queue: FakeQueue) -> None:
        admin = await entered(host, ADMIN)
        assert (await asked(admin, "dequeue", wants(namespace="no-such")))[0] == "NAMESPACE_NOT_FOUND"
        assert (await asked(admin, "dequeue", wants()))[0] == "OK"
        await admin.close()

    with_gate(gate(), main)


def test_changed_grant_applies_from_the_next_call() -> None:
    granted = EditableGrants()

    async def main(host: ServedQueue, queue: FakeQueue) -> None:
        raw = await entered(host)
        assert (await asked(raw, "dequeue", wants()))[0] == "PERMISSION_DENIED"
        granted.table["orders", "default"] = {CONSUME}
        assert (await asked(raw, "dequeue", wants()))[0] == "OK"
        assert (await asked(raw, "enqueue", enqueue("t")))[0] == "PERMISSION_DENIED"
        granted.table.clear()
        assert (await asked(raw, "dequeue", wants()))[0] == "PERMISSION_DENIED"
        await raw.close()

    with_gate(gate(granted), main)


def test_call_in_flight_keeps_its_permission() -> None:
    granted = EditableGrants(CONSUME)

    async def main(host: ServedQueue, queue: FakeQueue) -> None:
        queue.gate = asyncio.Event()
        raw = await entered(host)
        raw.send(call("dequeue", wants(1_000)))
        await soon(lambda: queue.running == 1)
        granted.table.clear()
        queue.gate.set()
        assert (await raw.reply("dequeue"))[1].failed is None
        await raw.close()

    with_gate(gate(granted), main)


def test_warnings_name_the_principal(caplog: pytest.LogCaptureFixture) -> None:
    async def main(host: ServedQueue, queue: FakeQueue) -> None:
        raw = await entered(host)
        raw.send(frame(call("dequeue", wants())[4:-3]))
        await raw.reply("dequeue")
        await raw.close()

    with caplog.at_level(logging.WARNING):
        with_gate(gate(EditableGrants(CONSUME)), main)
    assert "(orders): dequeue was refused" in caplog.text


# ------------------------------------------------------------------ changed secrets


def test_removed_token_closes_the_connections_that_used_it() -> None:
    own = gate(EditableGrants(CONSUME))

    async def main(host: ServedQueue, queue: FakeQueue) -> None:
        queue.gate = asyncio.Event()
        orders, admin, nobody = await entered(host), await entered(host, ADMIN), await host.raw()
        orders.send(call("dequeue", wants(1_000)))
        await soon(lambda: queue.running == 1)
        own.keyring = keyring(orders="another-0123456789")
        host.server.close_revoked()
        assert code_of((await orders.reply("dequeue"))[1]) == "UNKNOWN_OUTCOME"
        assert await orders.read_to_end() == b""
        await orders.close()
        queue.gate.set()
        assert (await asked(admin, "dequeue", wants()))[0] == "OK"
        assert (await asked(nobody, "authenticate", ttypes.AuthenticateRequest(ORDERS)))[0] == "UNAUTHENTICATED"
        for raw in (admin, nobody):
            await raw.close()

    with_gate(own, main)


def test_dequeues_that_wait_fail_when_the_grant_of_their_principal_is_taken_away() -> None:
    grants = EditableGrants(Permission.CONSUME)

    async def main(host: ServedQueue, queue: FakeQueue) -> None:
        queue.gate = asyncio.Event()
        orders, admin = await entered(host), await entered(host, ADMIN)
        wanted = [ttypes.TopicCount("t", 1)]
        for connection in (orders, admin):
            waiting = ttypes.DequeueRequest("default", wanted, wait_ms=20_000, timeout_ms=30_000)
            connection.send(call("dequeue", waiting, 7) + call("dequeue", ttypes.DequeueRequest("default", wanted), 8))
        await soon(lambda: queue.running == 4)
        host.server.refuse_waits(["default"])
        assert queue.cancelled == []
        grants.table.clear()
        host.server.refuse_waits(["another"])
        assert queue.cancelled == []
        host.server.refuse_waits(["default"])
        seqid, reply = await orders.reply("dequeue")
        assert (seqid, reply.failed.error.code) == (7, ErrorCode.PERMISSION_DENIED)
        assert queue.cancelled == ["dequeue"]
        queue.gate.set()
        assert {(await admin.reply("dequeue"))[0] for _ in range(2)} == {7, 8}
        await orders.close()
        await admin.close()

    with_gate(gate(grants), main)
