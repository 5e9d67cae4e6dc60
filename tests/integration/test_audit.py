"""Who may do what with bulk jobs, and what the audit of a real host shows: over clients, the console and SQS' door."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from foqs_client import AuditEntry, Change, Client, Item, ItemFilter, NotFound, PermissionDenied
from tests.integration.test_auth import BOSS, LATER, ORDERS, foqs
from tests.integration.test_console import GuardedConsole, OpenHost, calls, put
from tests.support.aio import run
from tests.support.console import Browser

pytestmark = [pytest.mark.process]


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[GuardedConsole]:
    with GuardedConsole(tmp_path / "guarded") as host:
        host.start()
        yield host


async def entries(client: Client) -> list[AuditEntry]:
    return (await client.audit()).entries


def test_jobs_need_the_grants_of_their_namespace(guarded: GuardedConsole) -> None:
    async def story() -> None:
        async with (
            Client(guarded.address, token=BOSS) as boss,
            Client(guarded.address, token=ORDERS) as orders,
        ):
            only = ItemFilter("t")
            job = await boss.start_bulk_job("cancel", only)
            assert job.started_by == "boss"
            for call in (orders.bulk_jobs, lambda: orders.start_bulk_job("cancel", only)):
                with pytest.raises(PermissionDenied):
                    await call()
            await boss.set_grant("orders", ["consume"])
            assert [found.id for found in await orders.bulk_jobs()] == [job.id]
            with pytest.raises(PermissionDenied):
                await orders.control_bulk_job(job.id, "cancel")
            await boss.set_grant("orders", ["admin"])
            mine = await orders.start_bulk_job("cancel", only)
            assert mine.started_by == "orders"
            with pytest.raises(PermissionDenied):
                await orders.audit()

    run(story())


def test_job_of_another_namespace_cannot_be_seen_or_stopped(guarded: GuardedConsole) -> None:
    async def story() -> None:
        async with Client(guarded.address, token=BOSS) as boss:
            from foqs_client import Namespace

            await boss.create_namespace(Namespace("shop"))
            job = await boss.start_bulk_job("cancel", ItemFilter("t"))
            async with Client(guarded.address, namespace="shop", token=BOSS) as other:
                assert await other.bulk_jobs() == []
                with pytest.raises(NotFound):
                    await other.control_bulk_job(job.id, "cancel")

    run(story())


def test_changes_are_noted_with_their_principal_and_nothing_secret(guarded: GuardedConsole) -> None:
    async def story() -> list[AuditEntry]:
        async with Client(guarded.address, token=BOSS) as boss:
            [result] = await boss.enqueue([Item("mail", b"secret payload", metadata=b"secret metadata")])
            item_id = result.require()
            await boss.dequeue({"other": 1})
            await boss.update([item_id], Change(3, metadata=b"secret metadata"))
            [delivery] = await boss.dequeue({"mail": 1}, wait_ms=5_000)
            await boss.extend([delivery])
            await boss.extend_held_leases([item_id], lease_ms=60_000)
            await boss.set_grant("orders", ["consume"])
            with pytest.raises(PermissionDenied):
                async with Client(guarded.address, token=ORDERS) as orders:
                    await orders.pause_topic("mail")
            await boss.pause_topic("mail")
            return await entries(boss)

    found = run(story())
    assert [(entry.call, entry.outcome) for entry in found] == [
        ("pauseTopic", "OK"),
        ("pauseTopic", "PERMISSION_DENIED"),
        ("setGrant", "OK"),
        ("extendHeldLeases", "OK"),
        ("update", "OK"),
    ]
    assert [entry.principal for entry in found] == ["boss", "orders", "boss", "boss", "boss"]
    assert all(entry.peer.startswith("127.0.0.1:") for entry in found)
    assert found[0].namespace == "default"
    assert found[2].target == "grant.principal=orders grant.permissions=consume"
    assert found[3].target.startswith("ids=")
    assert found[3].target.endswith(" lease_ms=60000")
    assert guarded.stop() == 0
    lines = [json.loads(line) for line in guarded.log.splitlines()]
    noted = [line for line in lines if line["logger"] == "foqs.audit"]
    assert [line["message"] for line in noted] == [
        "update: OK",
        "extendHeldLeases: OK",
        "setGrant: OK",
        "pauseTopic: PERMISSION_DENIED",
        "pauseTopic: OK",
    ]
    assert noted[0]["principal"] == "boss"
    for word in ("secret payload", "secret metadata", BOSS, ORDERS, LATER):
        assert word not in guarded.log


def test_command_line_shows_the_audit(guarded: GuardedConsole) -> None:
    token = {"FOQS_TOKEN_FILE": str(guarded.boss)}
    assert foqs(guarded, "topic", "pause", "mail", **token).returncode == 0
    shown = foqs(guarded, "audit", "-o", "json", **token)
    [row] = json.loads(shown.stdout)
    assert (row["call"], row["principal"], row["target"]) == ("pauseTopic", "boss", "topic=mail")
    assert foqs(guarded, "audit", FOQS_TOKEN_FILE=str(guarded.orders)).returncode == 1


# ------------------------------------------------------------------- the console


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenHost]:
    with OpenHost(tmp_path_factory.mktemp("audit") / "host") as found:
        found.start()
        yield found


def test_console_shows_what_was_changed_and_by_which_door(host: OpenHost) -> None:
    browser = Browser(host.console_port)
    put(host, Item("<b>x", b"1"))
    browser.post("/topic", topic="<b>x", action="pause")
    calls(host, lambda client: client.resume_topic("<b>x"))
    page = browser.get("/audit")
    assert page.text.index("resumeTopic") < page.text.index("pauseTopic")
    assert "console 127.0.0.1" in page.text
    assert "topic=<b>x" in page.text
    assert "<b>x" not in page.body
    assert "No host remembers a change" in browser.get("/audit", only="nowhere").text


def test_only_an_administrator_sees_the_audit_page(guarded: GuardedConsole) -> None:
    def page(token: str) -> Any:
        browser = Browser(guarded.console_port)
        browser.post("/login", token=token)
        return browser.get("/audit"), browser.get("/topics")

    answer, topics = page(BOSS)
    assert answer.status == 200
    assert "/audit" in topics.body
    answer, topics = page(ORDERS)
    assert answer.status == 403
    assert "/audit" not in topics.body
