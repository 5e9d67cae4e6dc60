"""Changes of administrators are noted once, with who, what and how they ended; nothing else is."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from thrift.Thrift import TType

from foqs.access.audit_trail import TARGET_CHARS_MAX, AuditRecord, AuditTrail
from foqs.access.call_permissions import Principal
from foqs.rpc.audit import Audit, describe
from foqs.rpc.call import Call, Handler, unchanged
from foqs.rpc.methods import contract_methods
from foqs_contract.call_table import CALLS, Permission
from foqs_contract.errors import Unavailable
from foqs_contract.idl import ttypes
from foqs_contract.method_table import METHODS
from tests.support.access import ORDERS, EditableGrants, gate
from tests.support.aio import run
from tests.support.fake_queue import FakeQueue
from tests.support.poll import soon
from tests.support.rpc_server import RawConnection, ServedQueue, call, serve_queue

_TOPIC = ttypes.ItemFilter(topic=b"t")


OPS = Principal("ops", is_admin=True)
NOBODY = Principal("ops")
METHODS_HERE = contract_methods({})


class Notes:
    """An audit and what it wrote."""

    def __init__(self) -> None:
        self.trail = AuditTrail()
        self._audit = Audit(self.trail, lambda: 77)

    def note(self, name: str, request: Any, outcome: str = "OK", principal: Principal | None = None) -> None:
        self._audit.note_call(METHODS_HERE[name.encode()], request, principal, "10.0.0.1:5", outcome)

    @property
    def newest(self) -> list[AuditRecord]:
        return list(self.trail.newest())


def noted(name: str, request: Any, outcome: str = "OK", principal: Principal | None = None) -> list[AuditRecord]:
    """Note one call and return what was written."""
    notes = Notes()
    notes.note(name, request, outcome, principal)
    return notes.newest


def test_change_is_noted_with_who_what_and_when() -> None:
    assert noted("purgeTopic", ttypes.TopicRequest(b"orders", b"mail"), principal=OPS) == [
        AuditRecord(77, "ops", "10.0.0.1:5", "purgeTopic", "orders", "topic=mail", "OK")
    ]


def test_principal_is_missing_where_nobody_authenticates() -> None:
    [entry] = noted("drainHost", ttypes.HostRequest(host_name=b"host1"))
    assert (entry.principal, entry.namespace, entry.target) == (None, None, "host_name=host1")


def test_forwarded_call_is_noted_by_the_host_that_was_called() -> None:
    request = ttypes.CancelRequest(b"orders", [b"1-2"], forwarded=True)
    assert noted("cancel", request) == noted("cancel", request, principal=OPS) == []


def test_mark_of_a_forwarded_call_hides_nothing_if_its_caller_is_no_host() -> None:
    request = ttypes.CancelRequest(b"orders", [b"1-2"], forwarded=True)
    [entry] = noted("cancel", request, "PERMISSION_DENIED", NOBODY)
    assert entry.target == "ids=1-2"


def test_of_the_pages_of_a_bulk_change_the_first_is_noted() -> None:
    notes = Notes()
    for cursor in (None, b"cursor", b"further"):
        notes.note("bulk", ttypes.BulkRequest(b"orders", _TOPIC, 3, page=ttypes.Page(5, cursor)))
    assert [entry.target for entry in notes.newest] == ["filter.topic=t action=redrive"]


def test_cursor_that_the_caller_made_up_hides_no_change() -> None:
    notes = Notes()
    page = ttypes.Page(5, b"cursor")
    notes.note("bulk", ttypes.BulkRequest(b"orders", _TOPIC, 3, page=page))
    notes.note("bulk", ttypes.BulkRequest(b"orders", _TOPIC, 1, page=page))
    notes.note("bulk", ttypes.BulkRequest(b"mails", _TOPIC, 1, page=page))
    notes.note("bulk", ttypes.BulkRequest(b"mails", _TOPIC, 1, page=page), principal=OPS)
    assert [(entry.principal, entry.namespace, entry.target) for entry in notes.newest] == [
        ("ops", "mails", "filter.topic=t action=cancel"),
        (None, "mails", "filter.topic=t action=cancel"),
        (None, "orders", "filter.topic=t action=cancel"),
        (None, "orders", "filter.topic=t action=redrive"),
    ]


def test_refused_page_hides_no_later_page_that_changes_something() -> None:
    notes = Notes()
    notes.note("bulk", ttypes.BulkRequest(b"orders", _TOPIC, 3), "UNAVAILABLE")
    for _ in range(2):
        notes.note("bulk", ttypes.BulkRequest(b"orders", _TOPIC, 3, page=ttypes.Page(5, b"cursor")))
    assert [entry.outcome for entry in notes.newest] == ["OK", "UNAVAILABLE"]


@pytest.mark.parametrize(
    ("request_", "target"),
    [
        (ttypes.CancelRequest(b"n", [b"1-1", b"1-2", b"1-3", b"1-4", b"1-5"]), "ids=1-1,1-2,1-3 and 2 more"),
        (
            ttypes.UpdateRequest(b"n", [b"1-1"], ttypes.Change(priority=4, metadata=b"secret")),
            "ids=1-1 change.priority=4 change.metadata=(6)",
        ),
        (ttypes.ConfigDocument(b"{'password': 1}"), "json=(15)"),
        (
            ttypes.GrantRequest(ttypes.Grant(b"ann", b"n", [2, 3])),
            "grant.principal=ann grant.permissions=consume,admin",
        ),
        (ttypes.ControlBulkJobRequest(b"n", b"abc", 3), "id=abc command=cancel"),
        (
            ttypes.SetTopicPolicyRequest(
                b"n",
                ttypes.TopicPolicy(b"t", 3, 2, [ttypes.GroupWeight(b"Ada", 3), ttypes.GroupWeight(b"Bob", 2)]),
            ),
            "policy.topic=t policy.group_leases_max=3 policy.fair=time policy.weights=Ada:3,Bob:2",
        ),
        (ttypes.RestoreItemsRequest(b"n", [ttypes.RestoredItem(), ttypes.RestoredItem()]), "items=(2)"),
    ],
)
def test_target_names_what_is_concerned_and_shows_no_content(request_: Any, target: str) -> None:
    assert describe(request_) == target


AUDITED = [row.name for row in CALLS.values() if row.is_audited]


def test_every_request_can_be_described_and_shows_no_struct_as_a_whole() -> None:
    for name in AUDITED:
        request = _filled(b"x", *METHODS[name].request_spec)
        assert "(" not in re.sub(r"\(\d+\)", "", describe(request)), name


def test_entry_of_a_denied_call_is_short_whatever_was_sent() -> None:
    text = b"x" * (1 << 20)
    for name in AUDITED:
        [entry] = noted(name, _filled(text, *METHODS[name].request_spec), "PERMISSION_DENIED", NOBODY)
        assert len(repr(entry)) < 10_000, name


def _filled(text: bytes, struct: Any, spec: Any) -> Any:
    """Return a struct with a value in each field."""
    return struct(**{field[2]: _value(field[1], field[3], text) for field in filter(None, spec)})


def _value(kind: int, more: Any, text: bytes) -> Any:
    if kind == TType.STRUCT:
        return _filled(text, *more)
    if kind == TType.LIST:
        return [_value(more[0], more[1], text)]
    return {TType.BOOL: True, TType.STRING: text}.get(kind, 1)


def test_long_target_is_cut_and_no_part_of_it_hides_another() -> None:
    longest = b"t" * 255
    assert describe(ttypes.BulkRequest(b"n", ttypes.ItemFilter(topic=longest), 1)) == (
        f"filter.topic={longest.decode()} action=cancel"
    )
    assert describe(ttypes.BulkRequest(b"n", ttypes.ItemFilter(topic=b"t" * 5_000), 1)).endswith("... action=cancel")
    many = ttypes.ItemFilter(topics=[longest] * 3, topic=b"t" * 5_000)
    assert len(describe(ttypes.BulkRequest(b"n", many, 1, move_to=longest))) < TARGET_CHARS_MAX


def test_value_cannot_look_like_another_part_of_the_target() -> None:
    found = describe(ttypes.BulkRequest(b"n", ttypes.ItemFilter(topic=b"t action=redrive"), 1))
    assert found == 'filter.topic="t action=redrive" action=cancel'
    assert describe(ttypes.CancelRequest(b"n", [b"1-1,1-2", b"a=b", b"\x1b[2J"])) == 'ids="1-1,1-2","a=b","\\u001b[2J"'


# ----------------------------------------------------------------- at a connection


def test_changes_of_administrators_are_rows_and_no_other_call() -> None:
    found = {row.name for row in CALLS.values() if row.is_audited}
    assert {"purgeTopic", "extendHeldLeases", "drainHost"} < found
    assert found.isdisjoint(("enqueue", "dequeue", "ack", "nack", "abandonDequeues", "peek", "listAudit", "gossip"))
    assert found == {name.decode() for name, method in METHODS_HERE.items() if method.is_audited}


def at_a_connection(
    handle: Handler, main: Callable[[ServedQueue, RawConnection], Awaitable[None]], granted: Permission | None = None
) -> list[AuditRecord]:
    """Return what a host notes whose `pauseTopic` is served by `handle`. A principal authenticates if it has a grant."""
    notes = Notes()

    async def run_main() -> None:
        more: dict[str, Any] = {}
        if granted is not None:
            more["authenticator"] = gate(EditableGrants(granted))
        async with serve_queue(FakeQueue(), calls={"pauseTopic": handle}, audit=notes._audit, **more) as host:
            raw = await host.raw()
            if granted is not None:
                raw.send(call("authenticate", ttypes.AuthenticateRequest(ORDERS)))
                await raw.reply("authenticate")
            await main(host, raw)
            await raw.close()

    run(run_main())
    return notes.newest


PAUSE = ttypes.TopicRequest("default", "mail")


async def ask(host: ServedQueue, raw: RawConnection) -> None:
    raw.send(call("pauseTopic", PAUSE))
    await raw.reply("pauseTopic")


def test_call_is_noted_with_the_outcome_of_its_reply() -> None:
    def fail(call: Call) -> None:
        call.fail(Unavailable("no shard"))

    def refuse(call: Call) -> None:
        raise Unavailable("no shard")

    def succeed(call: Call) -> None:
        call.reply(unchanged, ttypes.DoneReply())

    assert [entry.outcome for entry in at_a_connection(fail, ask)] == ["UNAVAILABLE"]
    assert [entry.outcome for entry in at_a_connection(refuse, ask)] == ["UNAVAILABLE"]
    [entry] = at_a_connection(succeed, ask, Permission.ADMIN)
    assert (entry.principal, entry.namespace, entry.target, entry.outcome) == ("orders", "default", "topic=mail", "OK")


def test_denied_change_is_noted() -> None:
    def never(call: Call) -> None:
        raise AssertionError("a denied call is not served")

    [entry] = at_a_connection(never, ask, Permission.CONSUME)
    assert (entry.principal, entry.call, entry.target) == ("orders", "pauseTopic", "topic=mail")
    assert entry.outcome == "PERMISSION_DENIED"


def test_change_whose_caller_left_has_an_unknown_outcome_and_is_noted_once() -> None:
    calls: list[Call] = []

    async def leave(host: ServedQueue, raw: RawConnection) -> None:
        raw.send(call("pauseTopic", PAUSE))
        await soon(lambda: bool(calls))
        await raw.close()
        await soon(lambda: not host.server.connections)
        calls[0].reply(unchanged, ttypes.DoneReply())

    assert [entry.outcome for entry in at_a_connection(calls.append, leave)] == ["UNKNOWN_OUTCOME"]
