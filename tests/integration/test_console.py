"""The console of real hosts: what its pages say and do, and what it refuses."""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from http.client import HTTPConnection
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from foqs.console.failing_logins import FAILING_LOGINS_MAX
from foqs_client import Client, Item, ItemFilter, Nack, Namespace, TopicPolicy
from tests.integration.test_auth import BOSS, ORDERS, Guarded
from tests.support.aio import run
from tests.support.certificates import Authority, secret_file
from tests.support.console import OWN_FORM, Answer, Browser, hidden_fields, job_id_of
from tests.support.poll import until
from tests.support.ports import free_port
from tests.support.processes import QUICK_HOST, RestartableHost, quick_host

pytestmark = [pytest.mark.process]

SCRIPT = "<script>alert(1)</script>\"'"
LONG_LEASE_MS = 3_600_000
"""The lease of an item that is to be leased while pages are read."""


class OpenHost(RestartableHost):
    """A host without authentication, with a console."""

    def __init__(
        self,
        folder: Path,
        store: str = "memory:",
        options: Mapping[str, Any] = MappingProxyType({}),
        command: Sequence[str] = QUICK_HOST,
    ) -> None:
        self.console_port = free_port()
        console = {"server.console": True, "server.console_port": self.console_port}
        super().__init__(folder, store, {**console, **options}, command)

    def client(self, namespace: str = "default") -> Client:
        return Client(self.address, namespace=namespace, timeout_ms=10_000)


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenHost]:
    with OpenHost(tmp_path_factory.mktemp("console") / "host") as found:
        found.start()
        yield found


@pytest.fixture
def browser(host: OpenHost) -> Browser:
    return Browser(host.console_port)


def calls(host: OpenHost, work: Any, namespace: str = "default") -> Any:
    async def call() -> Any:
        async with host.client(namespace) as client:
            return await work(client)

    return run(call())


def put(host: OpenHost, *items: Item, namespace: str = "default") -> list[str]:
    async def work(client: Client) -> list[str]:
        return [result.require() for result in await client.enqueue(items)]

    found: list[str] = calls(host, work, namespace)
    return found


def kill_items(host: OpenHost, topic: str, count: int, error: bytes | None = None) -> list[str]:
    """Enqueue items and make them dead, with this metadata. Returns their ids."""

    async def work(client: Client) -> list[str]:
        await client.enqueue([Item(topic, b"x")] * count)
        ids: list[str] = []
        while len(ids) < count:  # a dequeue returns without the items of a shard that is late
            found = await client.dequeue({topic: count - len(ids)}, wait_ms=5_000, lease_ms=LONG_LEASE_MS)
            for outcome in await client.nack([Nack(each.id, each.token, metadata=error, dead=True) for each in found]):
                outcome.require()
            ids += [each.id for each in found]
        return ids

    found: list[str] = calls(host, work)
    return found


# ----------------------------------------------------------------------- pages


def test_the_overview_counts_what_the_command_line_counts(host: OpenHost, browser: Browser) -> None:
    put(host, *[Item("overview", b"12345")] * 7)

    def is_equal() -> bool:
        usage = calls(host, lambda client: client.usage())
        counted = f"default {usage.items:,} {usage.bytes:,} {usage.topics:,} {usage.enqueues_last_minute:,}"
        return counted in browser.get("/").text

    until(is_equal, "both count the same")  # a minute after an enqueue it may end between the two
    assert "1 host, 4 shards, all served" in browser.get("/").text


def test_topics_are_listed_by_prefix_and_page(host: OpenHost, browser: Browser) -> None:
    put(host, *[Item(f"many-{number:03}") for number in range(150)])
    page = browser.get("/topics", prefix="many-")
    assert "many-000 1 0 0 0" in page.text
    assert "many-100" not in page.text
    more = browser.get("/topics", prefix="many-", cursor="many-099")
    assert "many-100 1 0 0 0" in more.text
    assert "many-149" in more.text
    assert "Next page" in page.text
    assert "Next page" not in more.text


def test_the_page_of_a_topic_shows_the_rules_for_its_groups(host: OpenHost, browser: Browser) -> None:
    put(host, Item("orders", group="ada"))
    assert "leases of a group" not in browser.get("/topic", topic="orders").text
    calls(host, lambda client: client.set_topic_policy(TopicPolicy("orders", group_leases_max=3)))
    page = browser.get("/topic", topic="orders").text
    assert "leases of a group at most 3" in page
    assert "groups take turns" not in page
    calls(host, lambda client: client.set_topic_policy(TopicPolicy("orders", fair="time")))
    page = browser.get("/topic", topic="orders").text
    assert "groups take turns by time" in page
    assert "leases of a group" not in page


def test_the_page_of_groups_says_what_holds_each_back(host: OpenHost, browser: Browser) -> None:
    put(host, Item("lines", group="ada"))
    assert "has no policy for groups" in browser.get("/groups", topic="lines").text
    calls(host, lambda client: client.set_topic_policy(TopicPolicy("lines", group_leases_max=1)))
    put(host, Item("lines", group="ada"), Item("lines", group="bob", priority=7))
    assert "Its groups" in browser.get("/topic", topic="lines").text
    [held] = calls(host, lambda client: client.dequeue({"lines": 1}, wait_ms=5_000, lease_ms=LONG_LEASE_MS))
    page = browser.get("/groups", topic="lines")
    assert "leased 1 eligible 1" in page.text or "eligible 1 leased 1" in page.text
    assert "ada leased 1 1 0 " in page.text
    assert f"id={held.id}" in page.body
    assert "bob eligible 1 0 7" in page.text
    leased = browser.get("/groups", topic="lines", state="leased", by="age").text
    assert "ada leased" in leased
    assert "bob eligible" not in leased
    alone = browser.get("/groups", topic="lines", group="bob")
    assert "bob eligible" in alone.text
    assert "ada leased" not in alone.text
    assert "This group is not in memory" in browser.get("/groups", topic="lines", group="eve").text
    assert "/groups?namespace=default&amp;topic=lines&amp;group=ada" in browser.get("/item", id=held.id).body


def test_a_topic_is_paused_resumed_and_purged(host: OpenHost, browser: Browser) -> None:
    best, other = put(host, Item("line", priority=-1), Item("line", priority=3))
    page = browser.get("/topic", topic="line")
    assert page.text.index(best) < page.text.index(other)
    assert "ready 2" in page.text
    assert "The topic is paused" in browser.post("/topic", topic="line", action="pause").text
    assert calls(host, lambda client: client.dequeue({"line": 1})) == []
    assert "delivered again" in browser.post("/topic", topic="line", action="resume").text
    asked = browser.post("/topic", topic="line", action="purge")
    assert "This deletes all items of the topic line, in every state: 2 at the moment" in asked.text
    assert calls(host, lambda client: client.count(ItemFilter("line"))).items == 2
    done = browser.post("/topic", topic="line", action="purge", confirmed="1")
    assert "2 items were deleted" in done.text
    assert calls(host, lambda client: client.count(ItemFilter("line"))).items == 0
    paused = browser.post("/topic", topic="line", action="pause")
    assert "The topic has no items, and is paused." in paused.text
    assert 'value="resume"' in paused.body
    assert 'value="pause"' in browser.post("/topic", topic="line", action="resume").body


def test_an_item_says_why_it_is_not_delivered_and_is_mended(host: OpenHost, browser: Browser) -> None:
    (item_id,) = put(host, Item("why", b"pay", delay_ms=3_600_000, idempotency_key="why-1"))
    page = browser.get("/item", id=item_id)
    assert "It is deferred until" in page.text
    assert "Idempotency key why-1" in page.text
    assert "pay" in page.text
    assert "The item is changed" in browser.post("/item", id=item_id, action="update", delay="0", priority="-5").text
    (delivery,) = calls(host, lambda client: client.dequeue({"why": 1}, wait_ms=5_000, lease_ms=LONG_LEASE_MS))
    assert (delivery.id, delivery.priority) == (item_id, -5)
    assert "Lease ends in" in browser.get("/item", id=item_id).text
    assert "It cannot be brought back" in browser.post("/item", id=item_id, action="cancel").text
    assert "The item is deleted" in browser.post("/item", id=item_id, action="cancel", confirmed="1").text
    assert "no such item" in browser.get("/item", id=item_id).text


def test_an_item_is_put_first_and_its_paused_topic_is_resumed(host: OpenHost, browser: Browser) -> None:
    first, last = put(host, Item("remedy", priority=3), Item("remedy", priority=9))
    calls(host, lambda client: client.pause_topic("remedy"))
    page = browser.get("/item", id=last)
    assert "1 item of its topic comes before it" in page.text
    assert "Resume the topic" in page.text
    done = browser.post("/item", id=last, action="update", priority="2")
    assert "The item is changed" in done.text
    assert "Put it first" not in done.text
    assert "Put it first" in browser.get("/item", id=first).text
    assert "delivered again" in browser.post("/topic", topic="remedy", action="resume").text
    (delivery,) = calls(host, lambda client: client.dequeue({"remedy": 1}, wait_ms=5_000))
    assert delivery.id == last


def test_dead_items_are_redriven_one_chosen_or_all(host: OpenHost, browser: Browser) -> None:
    ids = kill_items(host, "sad", 5)
    page = browser.get("/dead", topic="sad")
    assert all(item_id in page.text for item_id in ids)
    assert "5 " in page.text
    assert "The item is ready again" in browser.post("/item", id=ids[0], action="redrive").text
    assert "1 item is ready again" in browser.post("/dead", topic="sad", action="redrive", id=ids[1]).text
    asked = browser.submit("/bulk", hidden_fields(browser.get("/dead", topic="sad"), "preview"))
    assert "3 items match at the moment" in asked.text
    started = browser.submit("/bulk", hidden_fields(asked, "start"))
    until(lambda: "state done" in browser.get(f"/bulk?job={job_id_of(started)}").text, "the job has ended")
    assert calls(host, lambda client: client.count(ItemFilter("sad", ("ready",)))).items == 5


def test_dead_items_are_shown_with_the_error_of_their_consumer(host: OpenHost, browser: Browser) -> None:
    kill_items(host, "sad-error", 1, b"failed: no route\nto host")
    assert "given up by its consumer in attempt 1 failed: no route to host sad-error" in (
        browser.get("/dead", topic="sad-error").text
    )


def test_a_form_that_is_sent_twice_enqueues_once(host: OpenHost, browser: Browser) -> None:
    def send() -> Answer:
        return browser.post("/enqueue", topic="form", payload="grüße", priority="4", delay="1h", key="k-1")

    first, second = send(), send()
    assert "The item is enqueued" in first.text
    assert "grüße" in first.text
    assert second.body == first.body or "The item is enqueued" in second.text
    assert calls(host, lambda client: client.count(ItemFilter("form"))).items == 1


def test_namespaces_are_created_changed_and_granted(host: OpenHost, browser: Browser) -> None:
    assert "The namespace is created" in browser.post("/namespaces", name="shop").text
    changed = browser.post("/namespace", namespace="shop", action="update", topics_max="12")
    assert "topics_max 12" in changed.text
    granted = browser.post("/namespace", namespace="shop", action="grant", principal="ann", consume="1")
    assert "ann no yes no" in granted.text
    assert calls(host, lambda client: client.get_namespace("shop")).topics_max == 12


def test_the_cluster_page_shows_hosts_and_shards(host: OpenHost, browser: Browser) -> None:
    page = browser.get("/cluster")
    assert f"127.0.0.1:{host.port}" in page.text
    assert page.body.count('id="shard-') == 4
    assert "Drain" not in page.text  # a single host has nobody to hand its shards to


@pytest.mark.parametrize(
    ("path", "status", "text"),
    [
        ("/topic", 400, "topic: this is missing"),
        ("/topic?topic=x&state=odd", 400, "use one of ready"),
        ("/groups", 400, "topic: this is missing"),
        ("/groups?topic=x&by=odd", 400, "use one of size, age"),
        ("/groups?topic=x&state=odd", 400, "use one of eligible"),
        ("/item?id=odd", 400, "id"),
        ("/topics?namespace=absent", 404, "absent"),
        ("/topics?namespace=absent&order=ready", 404, "absent"),
        ("/nothing", 404, "Not Found"),
        ("/item", 400, "id: this is missing"),
    ],
)
def test_bad_input_is_answered_by_a_sentence(browser: Browser, path: str, status: int, text: str) -> None:
    page = browser.get(path)
    assert page.status == status
    assert text in page.text


def test_numbers_and_durations_that_are_none_name_their_field(host: OpenHost, browser: Browser) -> None:
    (item_id,) = put(host, Item("fields"))
    assert (
        "priority: 'high' is not a whole number"
        in browser.post("/item", id=item_id, action="update", priority="high").text
    )
    assert (
        "delay: '5 apples' is not a duration"
        in browser.post("/item", id=item_id, action="update", delay="5 apples").text
    )


def test_numbers_that_no_field_holds_are_answered_by_a_sentence(host: OpenHost, browser: Browser) -> None:
    (item_id,) = put(host, Item("large"))
    for page in (
        browser.post("/item", id=item_id, action="update", priority="99999999999"),
        browser.post("/item", id=item_id, action="update", delay="999999999999d"),
        browser.post("/enqueue", topic="large", key="k-large", priority="-99999999999"),
        browser.post("/namespace", action="update", backlog_items_max="9" * 30),
    ):
        assert page.status == 400, page.text


# --------------------------------------------------------------------- attacks


def test_markup_in_names_payloads_and_metadata_stays_text(host: OpenHost, browser: Browser) -> None:
    calls(host, lambda client: client.create_namespace(Namespace(SCRIPT)))
    (item_id,) = put(
        host, Item(SCRIPT, SCRIPT.encode(), metadata=SCRIPT.encode(), idempotency_key=SCRIPT), namespace=SCRIPT
    )
    browser.post("/topic", namespace=SCRIPT, topic=SCRIPT, action="pause")
    pages = [
        browser.get("/"),
        browser.get("/audit"),
        browser.get("/bulk", namespace=SCRIPT, topic=SCRIPT),
        browser.get("/enqueue", namespace=SCRIPT, topic=SCRIPT),
        browser.post("/topic", namespace=SCRIPT, topic=SCRIPT, action="purge"),
        browser.get("/topics", namespace=SCRIPT),
        browser.get("/topic", namespace=SCRIPT, topic=SCRIPT),
        browser.get("/groups", namespace=SCRIPT, topic=SCRIPT, group=SCRIPT),
        browser.get("/item", namespace=SCRIPT, id=item_id),
        browser.get("/dead", namespace=SCRIPT, topic=SCRIPT),
        browser.get("/namespaces"),
        browser.get("/namespace", namespace=SCRIPT),
        browser.get("/topics", namespace="default", prefix=SCRIPT),
        browser.get("/topic", topic="x", state=SCRIPT),
        browser.get("/item", id=SCRIPT),
        browser.get("/login", next=SCRIPT),
    ]
    for page in pages:
        assert "<script>" not in page.body
        assert "&lt;script&gt;" in page.body or page.body.count("script") == 0


def test_a_form_of_another_site_is_refused(host: OpenHost, browser: Browser) -> None:
    put(host, Item("target"))
    for headers in (
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "http://127.0.0.1:1"},
        {"Origin": "null"},
        {},
    ):
        refused = browser.post("/topic", headers, topic="target", action="purge", confirmed="1")
        assert refused.status == 403
    assert calls(host, lambda client: client.count(ItemFilter("target"))).items == 1
    assert browser.get("/topic", topic="target", action="purge", confirmed="1").status == 200
    assert calls(host, lambda client: client.count(ItemFilter("target"))).items == 1


def test_an_open_console_does_not_answer_to_a_foreign_name(browser: Browser) -> None:
    page = browser.get("/", {"Host": "evil.example"})
    assert page.status == 403
    assert "localhost" in page.text


def test_every_answer_has_the_headers_that_protect_it(browser: Browser) -> None:
    answers = [
        browser.get("/"),
        browser.get("/nothing"),
        browser.get("/static/console.css"),
        browser.get("/stream"),
        browser.get("/stream?page=/nothing"),
        browser.post("/topic", {}),
    ]
    for answer in answers:
        assert "frame-ancestors 'none'" in answer.headers["Content-Security-Policy"]
        assert answer.headers["X-Frame-Options"] == "DENY"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize(
    "path",
    [
        "/static/../server.py",
        "/static/%2e%2e/server.py",
        "/static/..%2fserver.py",
        "/static//etc/passwd",
        "/static/%2fetc%2fpasswd",
        "/static/",
    ],
)
def test_no_path_leaves_the_static_files(browser: Browser, path: str) -> None:
    assert browser.get(path).status in (403, 404)


def test_a_header_cannot_be_injected(browser: Browser) -> None:
    answer = browser.get("/login?next=/topics%0d%0aSet-Cookie:%20x=y")
    assert answer.headers["Set-Cookie"] is None
    done = browser.post("/topic", follow=False, topic="a\r\nSet-Cookie: x=y", action="pause")
    assert done.status == 303
    assert done.headers["Set-Cookie"] is None
    assert "\n" not in done.headers["Location"]


def test_a_long_body_is_refused_and_the_host_goes_on(host: OpenHost, browser: Browser) -> None:
    lines = [
        "POST /enqueue HTTP/1.1",
        "Host: localhost",
        "Sec-Fetch-Site: same-origin",
        "Content-Type: application/x-www-form-urlencoded",
        f"Content-Length: {100 << 20}",
    ]
    head = "".join(f"{line}\r\n" for line in lines) + "\r\n"
    assert b" 413 " in _status_line(host.console_port, head.encode() + b"x" * 200_000)
    assert browser.get("/").status == 200


def _status_line(port: int, data: bytes) -> bytes:
    """Return the first line of the answer to bytes that the host may stop reading."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        with contextlib.suppress(OSError):  # the host may have closed it
            connection.sendall(data)
        return connection.makefile("rb").readline()


def test_long_headers_and_odd_methods_are_refused(host: OpenHost, browser: Browser) -> None:
    assert b" 400 " in _status_line(
        host.console_port, b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n"
    )
    assert browser.send("PUT", "/topic", b"", OWN_FORM).status == 405
    assert browser.get("/").status == 200


@pytest.mark.parametrize(
    ("content_type", "body", "status"),
    [
        ("application/x-www-form-urlencoded; charset=nonsense", b"token=a", 415),
        ("application/x-www-form-urlencoded; charset=punycode", b"a" * 60_000, 415),
        (
            "multipart/form-data; boundary=x",
            b'--x\r\nContent-Disposition: form-data; name="topic"\r\n\r\nx\r\n--x--',
            415,
        ),
        ("text/plain", b"token=a", 415),
        ("application/x-www-form-urlencoded", b"token=\xff", 400),
    ],
)
@pytest.mark.parametrize("path", ["/login", "/topic"])
def test_a_body_that_is_no_form_of_the_console_is_refused(
    host: OpenHost, browser: Browser, path: str, content_type: str, body: bytes, status: int
) -> None:
    assert browser.send("POST", path, body, OWN_FORM | {"Content-Type": content_type}).status == status
    assert "unexpected error" not in host.log


def test_an_address_that_is_not_percent_encoded_is_refused(host: OpenHost, browser: Browser) -> None:
    for path in ("/login?next=/topics?\xff", "/topics?prefix=\xff", "/\xff"):
        request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode("latin-1")
        assert b" 400 " in _status_line(host.console_port, request)
    assert "unexpected error" not in host.log


def test_bytes_that_are_no_request_leave_no_traceback_in_the_log(host: OpenHost, browser: Browser) -> None:
    form = b"POST /login HTTP/1.1\r\nHost: localhost\r\nSec-Fetch-Site: same-origin\r\n"
    form += b"Content-Type: application/x-www-form-urlencoded\r\n"
    for data in (
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nBad Header\x00: x\r\n\r\n",
        form + b"Transfer-Encoding: chunked\r\n\r\nZZ\r\nx\r\n",
    ):
        assert b" 400 " in _status_line(host.console_port, data)
    with socket.create_connection(("127.0.0.1", host.console_port)) as connection:
        connection.sendall(form + b"Content-Length: 100\r\n\r\ntoken=")
    assert browser.get("/").status == 200
    assert "Traceback" not in host.log


def test_silent_peers_keep_no_other_out_and_are_disconnected(tmp_path: Path) -> None:
    command = quick_host(rpc={"stall_timeout_ms": 2_000})
    with OpenHost(tmp_path / "host", options={"rpc.connections_max": 20}, command=command) as host:
        host.start()
        silent = [socket.create_connection(("127.0.0.1", host.console_port), timeout=30) for _ in range(20)]
        assert Browser(host.console_port).get("/").status == 200
        for connection in silent:
            assert connection.recv(1) == b""
            connection.close()
        assert Browser(host.console_port).get("/").status == 200


def test_peers_that_read_nothing_keep_no_other_out(tmp_path: Path) -> None:
    with OpenHost(tmp_path / "host", options={"rpc.connections_max": 4}) as host:
        host.start()
        request = b"GET /static/uPlot.iife.min.js HTTP/1.1\r\nHost: localhost\r\n\r\n"
        with contextlib.ExitStack() as stack:
            for _ in range(4):
                peer = stack.enter_context(socket.create_connection(("127.0.0.1", host.console_port)))
                peer.sendall(request * 300)  # the answers are 15 MB
            assert Browser(host.console_port).get("/").status == 200


# -------------------------------------------------------------- authentication


class GuardedConsole(Guarded):
    """A host with authentication and a console, behind a proxy if there is a URL."""

    def __init__(self, folder: Path, authority: Authority | None = None, *, url: str = "", **more: Any) -> None:
        super().__init__(folder, authority, **more)
        self.console_port = free_port()
        options = self.config.read_text()
        assert "[server]" in options
        console = f'console = true\nconsole_port = {self.console_port}\nconsole_url = "{url}"'
        self.config.write_text(options.replace("[server]", f"[server]\n{console}", 1))


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[GuardedConsole]:
    with GuardedConsole(tmp_path / "guarded") as found:
        found.start()
        yield found


def logged_in(port: int, token: str, context: ssl.SSLContext | None = None) -> tuple[Browser, Answer]:
    browser = Browser(port, context)
    return browser, browser.post("/login", token=token, next="/")


def test_only_the_login_is_open_and_it_leads_back(guarded: GuardedConsole) -> None:
    browser = Browser(guarded.console_port)
    sent_away = browser.get("/topics?prefix=a")
    assert (sent_away.status, sent_away.headers["Location"]) == (303, "/login?next=/topics?prefix%3Da")
    assert browser.post("/topic", follow=False, topic="x", action="purge", confirmed="1").status == 303
    wrong = browser.post("/login", token="guess")
    assert wrong.status == 403
    assert "belongs to no principal" in wrong.text
    assert "foqs" not in browser.cookies
    done = browser.post("/login", follow=False, token=BOSS, next="/topics?prefix=a")
    assert done.headers["Location"] == "/topics?prefix=a"
    for flag in ("HttpOnly", "SameSite=Strict", "Path=/"):
        assert flag in done.headers["Set-Cookie"]
    assert browser.get("/topics").status == 200
    away = browser.post("/login", follow=False, token=BOSS, next="//evil.example/")
    assert away.headers["Location"] == "/"


def test_grants_decide_what_is_shown_and_done(guarded: GuardedConsole) -> None:
    async def prepare() -> tuple[str, str]:
        async with Client(guarded.address, token=BOSS) as boss:
            await boss.create_namespace(Namespace("orders"))
            await boss.create_namespace(Namespace("secret"))
            await boss.set_grant("orders", ["consume"], "orders")
        async with Client(guarded.address, token=BOSS, namespace="secret") as boss:
            (hidden,) = await boss.enqueue([Item("hidden", b"hidden payload")])
        async with Client(guarded.address, token=BOSS, namespace="orders") as boss:
            await boss.enqueue([Item("held")])
            (held,) = await boss.dequeue({"held": 1}, lease_ms=3_600_000, wait_ms=5_000)
        return hidden.require(), held.id

    hidden, held = run(prepare())
    orders, page = logged_in(guarded.console_port, ORDERS)
    assert "secret" not in orders.get("/topics").text
    assert "Cluster" not in page.text
    for path in ("/topic", "/topics"):
        assert 'name="action"' not in orders.get(path, namespace="orders", topic="x").body
    for refused in (
        orders.get("/cluster"),
        orders.get("/topics", namespace="secret"),
        orders.get("/topics", namespace="secret", order="ready"),
        orders.get("/topic", namespace="secret", topic="hidden"),
        orders.get("/groups", namespace="secret", topic="hidden"),
        orders.get("/item", namespace="secret", id=hidden),
        orders.get("/topic", namespace="secret", topic="hidden", state="ready"),
        orders.get("/dead", namespace="secret"),
        orders.get("/bulk", namespace="secret"),
        orders.get("/audit"),
        orders.post("/item", namespace="secret", id=hidden, action="cancel", confirmed="1"),
        orders.post("/item", namespace="orders", id=held, action="extend", lease="5m"),
        orders.post("/namespaces", name="mine"),
        orders.post("/namespace", namespace="orders", action="grant", principal="orders", admin="1"),
        orders.post("/enqueue", namespace="orders", topic="x", key="k"),
    ):
        assert refused.status == 403, refused.text
        assert "hidden payload" not in refused.body
    assert "leased" in orders.get("/item", namespace="orders", id=held).text
    assert 'name="lease"' not in orders.get("/item", namespace="orders", id=held).body
    in_own = orders.get("/item", namespace="orders", id=hidden)
    assert "has no such item" in in_own.text
    assert "hidden payload" not in in_own.body
    boss, _ = logged_in(guarded.console_port, BOSS)
    assert "hidden payload" in boss.get("/item", namespace="secret", id=hidden).text
    extended = boss.post("/item", namespace="orders", id=held, action="extend", lease="5m")
    assert "The lease is extended" in extended.text
    assert "Cluster" in boss.get("/").text


def test_a_logout_and_a_removed_token_end_the_session(guarded: GuardedConsole) -> None:
    orders, _ = logged_in(guarded.console_port, ORDERS)
    assert orders.get("/").status == 200
    stolen = Browser(guarded.console_port, None, dict(orders.cookies))
    version, name, end, code = orders.cookies["foqs"].split(".")
    for cookie in (f"{version}.{name}.{int(end) + 1}.{code}", f"{version}.{name}.1.{code}", f"{version}.{name}.{end}."):
        forger = Browser(guarded.console_port, None, {"foqs": cookie})
        assert (forger.get("/").status, forger.get("/stream?page=/").status) == (303, 401)
    assert "Max-Age=0" in orders.post("/logout", follow=False).headers["Set-Cookie"]
    assert orders.get("/").status == 303
    assert stolen.get("/").status == 200
    guarded.orders.write_text("another-secret-of-orders")
    guarded.read_again("tokens and certificates were read again")
    assert stolen.get("/").status == 303
    guarded.check_log()


def test_with_tls_the_cookie_is_for_this_host_only(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    with GuardedConsole(tmp_path / "guarded", authority) as host:
        host.start()
        context = ssl.create_default_context(cafile=str(authority.file))
        browser = Browser(host.console_port, context)
        done = browser.post("/login", follow=False, token=BOSS, next="/")
        assert done.headers["Set-Cookie"].startswith("__Host-foqs=")
        assert "Secure" in done.headers["Set-Cookie"]
        assert browser.get("/cluster").status == 200


def test_guessing_tokens_is_slow_and_keeps_nobody_else_from_logging_in(tmp_path: Path) -> None:
    with GuardedConsole(tmp_path / "guarded", failure_delay_s=60) as host, ExitStack() as guesses:
        host.start()

        def are_refused() -> bool:
            answer = host.get("/metrics")
            return (
                answer is not None and f"foqs_authentication_failures_total {float(FAILING_LOGINS_MAX)}\n" in answer[1]
            )

        for _ in range(FAILING_LOGINS_MAX):
            guess = guesses.enter_context(closing(HTTPConnection("127.0.0.1", host.console_port)))
            guess.request(
                "POST", "/login", "token=guess", OWN_FORM | {"Content-Type": "application/x-www-form-urlencoded"}
            )
        until(are_refused, "all guesses are refused, and not answered yet")
        assert Browser(host.console_port).post("/login", token=BOSS).status == 429
        elsewhere = Browser(host.console_port, address="127.0.0.2")
        assert elsewhere.post("/login", token=BOSS, next="/").status == 200
        assert "a login with a wrong token" in host.log


def test_a_certificate_that_was_replaced_is_used(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    with GuardedConsole(tmp_path / "guarded", authority, expired=True) as host:
        host.start()
        assert host.files is not None
        context = ssl.create_default_context(cafile=str(authority.file))
        with pytest.raises(ssl.SSLCertVerificationError):
            Browser(host.console_port, context).get("/login")
        fresh = authority.sign("fresh")
        host.files.cert.write_bytes(fresh.cert.read_bytes())
        secret_file(host.files.key, fresh.key.read_bytes())
        host.read_again("were read again")
        assert Browser(host.console_port, context).get("/login").status == 200
        host.check_log()
