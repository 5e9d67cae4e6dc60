"""Changes of administrators are noted once, with who, what and how they ended; nothing else is."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any

import pytest
from thrift.Thrift import TType

from foqs.access.audit_trail import TARGET_CHARS_MAX, AuditEntry, AuditTrail
from foqs.queue.port import PendingCall
from foqs.rpc.audited_service import AuditedService, describe
from foqs.rpc.methods import Caller, MethodHandler, ServerMethod, contract_methods
from foqs_contract.call_table import CALLS
from foqs_contract.errors import FoqsError, Unavailable
from foqs_contract.idl import ttypes
from foqs_contract.method_table import METHODS

_TOPIC = ttypes.ItemFilter(topic=b"t")


class Session:
    principal_name = "ops"

    def __init__(self, *, is_administrator: bool = True) -> None:
        self.is_administrator = is_administrator

    def authenticate(self, token: bytes | None, caller: Caller) -> PendingCall | None:
        raise AssertionError("nobody authenticates")


class Peer:
    """The `Caller` of one call."""

    peer = "10.0.0.1:5"

    def __init__(self, session: Session | None = None) -> None:
        self.session = session
        self.replies: list[Any] = []

    def reply(self, to_struct: Callable[[Any], Any], value: Any, on_unsent: Callable[[], None] | None = None) -> None:
        self.replies.append(to_struct(value))

    def fail(self, error: Exception) -> None:
        self.replies.append(error)

    def log_malformed(self, text: str) -> None:
        raise AssertionError(text)


class Pending:
    def __init__(self) -> None:
        self.is_abandoned = False

    def abandon(self) -> None:
        self.is_abandoned = True


class Service:
    """An `RpcService` whose handlers all do the same."""

    def __init__(self, handle: MethodHandler) -> None:
        self.methods: dict[bytes, ServerMethod] = contract_methods(dict.fromkeys(METHODS, handle))

    def timeout_s(self, request: Any) -> float:
        return 1.0


def answer(request: Any, deadline: float, caller: Caller) -> None:
    caller.reply(lambda value: value, "done")


def call(name: str, request: Any, handle: MethodHandler = answer, caller: Peer | None = None) -> list[AuditEntry]:
    """Make one call and return what was noted."""
    trail = AuditTrail()
    service = AuditedService(Service(handle), trail, lambda: 77)
    service.methods[name.encode()].handle(request, 1.0, caller or Peer())
    return list(trail.newest())


def test_changes_of_administrators_are_noted_and_no_other_call() -> None:
    plain = Service(answer)
    audited = AuditedService(plain, AuditTrail(), lambda: 0)
    found = {
        name.decode() for name, method in audited.methods.items() if method.handle is not plain.methods[name].handle
    }
    assert found == {row.name for row in CALLS.values() if row.is_audited}
    assert {"purgeTopic", "extendHeldLeases", "drainHost"} < found
    assert found.isdisjoint(("enqueue", "dequeue", "ack", "nack", "abandonDequeues", "peek", "listAudit", "gossip"))


def test_change_is_noted_with_who_what_and_when() -> None:
    caller = Peer(Session())
    request = ttypes.TopicRequest(b"orders", b"mail")
    assert call("purgeTopic", request, caller=caller) == [
        AuditEntry(77, "ops", "10.0.0.1:5", "purgeTopic", "orders", "topic=mail", "OK")
    ]
    assert caller.replies == ["done"]


def test_principal_is_missing_where_nobody_authenticates() -> None:
    [entry] = call("drainHost", ttypes.HostRequest(host_name=b"host1"))
    assert (entry.principal, entry.namespace, entry.target) == (None, None, "host_name=host1")


def test_failed_change_is_noted_with_its_error() -> None:
    def fail(request: Any, deadline: float, caller: Caller) -> None:
        caller.fail(Unavailable("no shard"))

    def refuse(request: Any, deadline: float, caller: Caller) -> None:
        raise Unavailable("no shard")

    request = ttypes.TopicRequest(b"orders", b"mail")
    assert [entry.outcome for entry in call("pauseTopic", request, fail)] == ["UNAVAILABLE"]
    trail = AuditTrail()
    with pytest.raises(FoqsError):
        AuditedService(Service(refuse), trail, lambda: 77).methods[b"pauseTopic"].handle(request, 1.0, Peer())
    assert [entry.outcome for entry in trail.newest()] == ["UNAVAILABLE"]


def test_change_whose_caller_left_has_an_unknown_outcome_and_is_noted_once() -> None:
    pending = Pending()
    callers: list[Caller] = []

    def wait(request: Any, deadline: float, caller: Caller) -> PendingCall:
        callers.append(caller)
        return pending

    trail = AuditTrail()
    service = AuditedService(Service(wait), trail, lambda: 77)
    noted = service.methods[b"pauseTopic"].handle(ttypes.TopicRequest(b"orders", b"mail"), 1.0, Peer())
    assert noted is not None
    assert list(trail.newest()) == []
    noted.abandon()
    callers[0].reply(lambda value: value, "late")
    assert pending.is_abandoned
    assert [entry.outcome for entry in trail.newest()] == ["UNKNOWN_OUTCOME"]


def test_forwarded_call_is_noted_by_the_host_that_was_called() -> None:
    request = ttypes.CancelRequest(b"orders", [b"1-2"], forwarded=True)
    assert call("cancel", request) == []
    assert call("cancel", request, caller=Peer(Session())) == []


def test_mark_of_a_forwarded_call_hides_nothing_if_its_caller_is_no_host() -> None:
    request = ttypes.CancelRequest(b"orders", [b"1-2"], forwarded=True)
    [entry] = call("cancel", request, caller=Peer(Session(is_administrator=False)))
    assert entry.target == "ids=1-2"


def test_of_the_pages_of_a_bulk_change_the_first_is_noted() -> None:
    trail = AuditTrail()
    handle = AuditedService(Service(answer), trail, lambda: 77).methods[b"bulk"].handle
    for cursor in (None, b"cursor", b"further"):
        handle(ttypes.BulkRequest(b"orders", _TOPIC, 3, page=ttypes.Page(5, cursor)), 1.0, Peer())
    assert [entry.target for entry in trail.newest()] == ["filter.topic=t action=redrive"]


def test_cursor_that_the_caller_made_up_hides_no_change() -> None:
    trail = AuditTrail()
    handle = AuditedService(Service(answer), trail, lambda: 77).methods[b"bulk"].handle
    page = ttypes.Page(5, b"cursor")
    handle(ttypes.BulkRequest(b"orders", _TOPIC, 3, page=page), 1.0, Peer())
    handle(ttypes.BulkRequest(b"orders", _TOPIC, 1, page=page), 1.0, Peer())
    handle(ttypes.BulkRequest(b"mails", _TOPIC, 1, page=page), 1.0, Peer())
    handle(ttypes.BulkRequest(b"mails", _TOPIC, 1, page=page), 1.0, Peer(Session()))
    assert [(entry.principal, entry.namespace, entry.target) for entry in trail.newest()] == [
        ("ops", "mails", "filter.topic=t action=cancel"),
        (None, "mails", "filter.topic=t action=cancel"),
        (None, "orders", "filter.topic=t action=cancel"),
        (None, "orders", "filter.topic=t action=redrive"),
    ]


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
        (ttypes.RestoreItemsRequest(b"n", [ttypes.RestoredItem(), ttypes.RestoredItem()]), "items=(2)"),
    ],
)
def test_target_names_what_is_concerned_and_shows_no_content(request_: Any, target: str) -> None:
    assert describe(request_) == target


@pytest.mark.parametrize("name", [row.name for row in CALLS.values() if row.is_audited])
def test_every_request_can_be_described_and_shows_no_struct_as_a_whole(name: str) -> None:
    request = _filled(b"x", *METHODS[name].request_spec)
    assert "(" not in re.sub(r"\(\d+\)", "", describe(request))


@pytest.mark.parametrize("name", [row.name for row in CALLS.values() if row.is_audited])
def test_entry_of_a_denied_call_is_short_whatever_was_sent(name: str) -> None:
    trail = AuditTrail()
    on_denied = AuditedService(Service(answer), trail, lambda: 77).methods[name.encode()].on_denied
    assert on_denied is not None
    on_denied(_filled(b"x" * (1 << 20), *METHODS[name].request_spec), Session(), "10.0.0.1:5")
    [entry] = trail.newest()
    assert len(repr(entry)) < 10_000


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


def test_denied_change_is_noted() -> None:
    trail = AuditTrail()
    service = AuditedService(Service(answer), trail, lambda: 77)
    purge = service.methods[b"purgeTopic"]
    assert purge.on_denied is not None
    purge.on_denied(ttypes.TopicRequest(b"orders", b"mail"), Session(is_administrator=False), "10.0.0.1:5")
    assert list(trail.newest()) == [
        AuditEntry(77, "ops", "10.0.0.1:5", "purgeTopic", "orders", "topic=mail", "PERMISSION_DENIED")
    ]
    assert service.methods[b"enqueue"].on_denied is None


def test_refused_page_hides_no_later_page_that_changes_something() -> None:
    trail = AuditTrail()
    first = AuditedService(Service(lambda request, deadline, caller: caller.fail(Unavailable("x"))), trail, lambda: 77)
    later = AuditedService(Service(answer), trail, lambda: 77)
    first.methods[b"bulk"].handle(ttypes.BulkRequest(b"orders", _TOPIC, 3), 1.0, Peer())
    for _ in range(2):
        page = ttypes.BulkRequest(b"orders", _TOPIC, 3, page=ttypes.Page(5, b"cursor"))
        later.methods[b"bulk"].handle(page, 1.0, Peer())
    assert [entry.outcome for entry in trail.newest()] == ["OK", "UNAVAILABLE"]


def test_call_that_ends_later_is_noted_then() -> None:
    async def main() -> None:
        trail = AuditTrail()
        callers: list[Caller] = []
        service = AuditedService(Service(lambda request, deadline, caller: callers.append(caller)), trail, lambda: 77)
        service.methods[b"cancel"].handle(ttypes.CancelRequest(b"orders", [b"1-2"]), 1.0, Peer())
        assert list(trail.newest()) == []
        callers[0].reply(lambda value: value, None)
        assert len(list(trail.newest())) == 1

    asyncio.run(main())
