"""Queues that other hosts create: found by a reading of the catalog that begins after the call, and not too many of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine
from itertools import pairwise
from typing import Any, Final

import pytest

from foqs.catalog.changes import new_catalog
from foqs.catalog.document import Document, QueueEntry
from foqs.catalog.port import CatalogUnreachable
from foqs.catalog.queue_changes import change_queue
from foqs.options.sqs_options import ACCOUNT_DEFAULT, SqsOptions
from foqs.sqs.errors import SqsError
from foqs.sqs.identifiers import Account, QueueName
from foqs.sqs.queue_directory import READ_INTERVAL_S, QueueDirectory
from foqs_contract.errors import Unavailable
from tests.support.virtual_time import run_virtual

READING_S: Final = 0.1


class Catalog:
    """In place of the host's administration. A reading returns what was stored when it began.

    Attributes:
        stored: the document that other hosts change.
        began_at_s: when the readings began.
    """

    def __init__(self) -> None:
        self.stored = self.applied = new_catalog("default", 1)
        self.began_at_s: list[float] = []
        self.is_reading = False
        self.failure: Exception | None = None

    def document(self) -> Document:
        return self.applied

    def add_change_listener(self, listener: Callable[[Collection[str]], None]) -> None:
        """Nothing changes by itself."""

    async def refresh(self) -> None:
        assert not self.is_reading, "one after the other"
        self.is_reading = True
        self.began_at_s.append(asyncio.get_running_loop().time())
        found, failure = self.stored, self.failure
        await asyncio.sleep(READING_S)
        self.is_reading = False
        if failure is not None:
            raise failure
        self.applied = found

    def create(self, name: str) -> None:
        """Create a queue at another host."""
        self.stored = change_queue(self.stored, "default", name, lambda _: QueueEntry({}, {}, 0, 0), 100)


def directory(
    options: SqsOptions, catalog: Catalog | None = None, time_s: Callable[[], float] = lambda: 0.0
) -> QueueDirectory:
    return QueueDirectory(Catalog() if catalog is None else catalog, options, time_s)  # type: ignore[arg-type]


class World:
    def __init__(self) -> None:
        self.catalog = Catalog()
        time_s = asyncio.get_running_loop().time
        self.directory = directory(SqsOptions(), self.catalog, time_s)

    async def exists(self, name: str) -> bool:
        try:
            await self.directory.find(QueueName(Account(ACCOUNT_DEFAULT), name))
        except SqsError as error:
            assert error.shape == "QueueDoesNotExist"
            return False
        return True

    def start(self, name: str) -> asyncio.Task[bool]:
        return asyncio.ensure_future(self.exists(name))


def run_story(story: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        await story(World())

    run_virtual(run)


def test_a_queue_that_was_created_after_the_last_reading_is_found() -> None:
    async def story(world: World) -> None:
        assert not await world.exists("mail")
        world.catalog.create("mail")
        assert await world.exists("mail")

    run_story(story)


def test_a_queue_that_was_created_during_a_reading_is_found_by_the_next_one() -> None:
    async def story(world: World) -> None:
        early = world.start("mail")
        await asyncio.sleep(READING_S / 2)
        assert world.catalog.is_reading
        world.catalog.create("mail")
        late = world.start("mail")
        assert (await early, await late) == (False, True)
        assert world.catalog.began_at_s == pytest.approx([0, READ_INTERVAL_S])

    run_story(story)


def test_a_known_queue_is_found_without_a_reading() -> None:
    async def story(world: World) -> None:
        world.catalog.create("mail")
        assert await world.exists("mail")
        assert await world.exists("mail")
        assert len(world.catalog.began_at_s) == 1

    run_story(story)


def test_unknown_names_cost_a_reading_in_each_interval_however_many_ask() -> None:
    async def story(world: World) -> None:
        async def ask(name: str) -> None:
            while asyncio.get_running_loop().time() < 9 * READ_INTERVAL_S:
                assert not await world.exists(name)

        await asyncio.gather(*(ask(f"queue-{place}") for place in range(50)))
        began_at_s = world.catalog.began_at_s
        assert len(began_at_s) == 10
        intervals_s = [later - earlier for earlier, later in pairwise(began_at_s)]
        assert min(intervals_s) == pytest.approx(READ_INTERVAL_S)

    run_story(story)


def test_a_caller_that_leaves_does_not_end_the_reading_of_the_others() -> None:
    async def story(world: World) -> None:
        world.catalog.create("mail")
        leaving, staying = world.start("mail"), world.start("mail")
        await asyncio.sleep(READING_S / 2)
        leaving.cancel()
        assert await staying
        assert leaving.cancelled()
        last = world.start("other")
        await asyncio.sleep(READING_S)
        last.cancel()
        await asyncio.sleep(READ_INTERVAL_S + READING_S)
        assert not world.catalog.is_reading
        world.catalog.create("other")
        assert await world.exists("other")

    run_story(story)


def test_while_the_catalog_cannot_be_read_it_is_not_known_whether_a_queue_exists() -> None:
    async def story(world: World) -> None:
        world.catalog.create("mail")
        assert await world.exists("mail")
        world.catalog.failure = CatalogUnreachable("the session is lost")
        for _ in range(2):
            with pytest.raises(Unavailable, match="the session is lost"):
                await world.exists("other")
        assert await world.exists("mail")
        world.catalog.failure = None
        assert not await world.exists("other")

    run_story(story)


# --------------------------------------------------------------------- accounts

WEST: Final = "us-west-2"
TWO_REGIONS: Final = {
    f"{WEST}:{ACCOUNT_DEFAULT}": "west",
    ACCOUNT_DEFAULT: "default",
    "111111111111": "other",
    "eu-west-1:222222222222": "europe",
}


@pytest.mark.parametrize(
    ("digits", "region", "namespace", "text"),
    [
        (ACCOUNT_DEFAULT, WEST, "west", f"{WEST}:{ACCOUNT_DEFAULT}"),
        (ACCOUNT_DEFAULT, "us-east-1", "default", ACCOUNT_DEFAULT),
        (ACCOUNT_DEFAULT, "us-west-22", "default", ACCOUNT_DEFAULT),
        (ACCOUNT_DEFAULT, "", "default", ACCOUNT_DEFAULT),
        ("111111111111", WEST, "other", "111111111111"),
        ("222222222222", "eu-west-1", "europe", "eu-west-1:222222222222"),
        ("222222222222", WEST, None, "222222222222"),
        ("333333333333", WEST, None, "333333333333"),
        (f"{WEST}:{ACCOUNT_DEFAULT}", "us-east-1", None, f"{WEST}:{ACCOUNT_DEFAULT}"),
        (f"{WEST}:{ACCOUNT_DEFAULT}", "", None, f"{WEST}:{ACCOUNT_DEFAULT}"),
    ],
)
def test_a_key_with_a_region_is_the_account_in_this_region_only(
    digits: str, region: str, namespace: str | None, text: str
) -> None:
    found = directory(SqsOptions(accounts=TWO_REGIONS))
    account = Account(digits, region)
    assert found.known_namespace_of(account) == namespace
    assert found.configured(account).text == text
    if namespace is None:
        with pytest.raises(SqsError) as refused:
            found.namespace_of(account)
        assert refused.value.shape == "QueueDoesNotExist"
    else:
        assert found.namespace_of(account) == namespace


@pytest.mark.parametrize("region", [WEST, "us-east-1"])
def test_the_first_account_is_the_default_in_each_region(region: str) -> None:
    found = directory(SqsOptions(accounts=TWO_REGIONS))
    assert found.account_default(region) == Account(ACCOUNT_DEFAULT, region)


def test_two_names_are_of_one_queue_if_their_accounts_have_one_namespace() -> None:
    found = directory(SqsOptions(accounts={**TWO_REGIONS, "444444444444": "west"}))
    queue = QueueName(Account(ACCOUNT_DEFAULT, WEST), "mail")
    others = {
        QueueName(Account(ACCOUNT_DEFAULT, WEST), "mail"): True,
        QueueName(Account("444444444444", "eu-west-1"), "mail"): True,
        QueueName(Account("444444444444"), "post"): False,
        QueueName(Account(ACCOUNT_DEFAULT, "us-east-1"), "mail"): False,
        QueueName(Account("333333333333", WEST), "mail"): False,
    }
    assert {other: found.is_same(queue, other) for other in others} == others
