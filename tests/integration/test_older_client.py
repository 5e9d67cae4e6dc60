"""Clients and hosts of different versions: the behavioural suite of each client plays on hosts of the other version.

The older version is built from the history. Its own suite plays with its own client on a host of this version;
the suite of this version plays on its host. `DIFFERENT` names the few stories that end otherwise, and why.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from foqs_client import Client, Item, NotImplementedYet
from foqs_contract.idl import ttypes
from tests.behaviour.sites import OPTIONS, PATIENT_HOST
from tests.support.aio import run
from tests.support.mysql9 import running
from tests.support.older_version import OLDER, ROOT, OlderVersion, installed
from tests.support.processes import RestartableHost
from tests.support.raw_calls import call_once

pytestmark = [pytest.mark.process, pytest.mark.timeout(400)]

OLDER_OPTIONS: Final = {**OPTIONS, "shard.sweep_interval_ms": 60_000, "calls.handout_wait_ms_max": 30_000}
"""What `PATIENT_HOST` has, too, the older version has as options."""

SHORT: Final = ("test_enqueue_dequeue.py", "test_leases.py", "test_purge.py")
"""The files of the short form; both suites have them."""
SLOW: Final = (
    "how_often",
    "retention",
    "backs_off",
    "backoff",
    "at_most_once",
    "delayed",
    "may_say_when",
    "set_the_time",
)
"""Words in the names of stories that wait for a second or more. The short form leaves them out."""
ALL: Final = ("",)
WORDS: Final = "explain: the words of a reason may change"
CONFIG: Final = "the older version names a field that importConfig does not have"
LATE: Final = "the older host refuses every extension after the end of a lease"
INCARNATIONS: Final = "the older host numbers no incarnations"
ORDER: Final = "the older host exchanges items that came within milliseconds of each other"
METHODS: Final = "calls every method, and the older version has fewer, some by another name"
DIFFERENT: Final = {
    "older": {
        "test_why.py::test_a_paused_topic_and_an_item_that_is_gone_are_explained": WORDS,
        "test_why.py::test_an_item_says_why_it_is_not_delivered_and_what_would_change_it": WORDS,
        "test_bad_bytes.py::test_a_field_of_another_type_or_twice_is_named_and_changes_nothing": METHODS,
        "test_bad_bytes.py::test_nesting_without_end_is_refused_by_every_call_and_changes_nothing": METHODS,
        "test_bad_fields.py::test_a_bad_field_is_named_and_changes_nothing": METHODS,
        "test_bad_fields.py::test_a_text_that_is_no_configuration_is_refused": CONFIG,
        "test_bad_ids.py::test_after_its_end_a_lease_can_only_be_acked_and_after_the_next_not_even_that": LATE,
        "test_leases.py::test_a_token_may_ack_after_the_end_of_its_lease_until_the_item_is_leased_again": LATE,
    },
    "current": {
        "test_explain.py::test_a_paused_topic_and_an_item_that_is_gone_are_explained": WORDS,
        "test_explain.py::test_explain_names_the_reason_and_the_remedy": WORDS,
        "test_bad_fields.py::test_malformed_configuration_is_refused": CONFIG,
        "test_bad_bytes.py::test_field_of_another_type_or_twice_is_named_and_changes_nothing": METHODS,
        "test_bad_bytes.py::test_deep_nesting_is_refused_by_every_call_and_changes_nothing": METHODS,
        "test_bad_fields.py::test_bad_field_is_named_and_changes_nothing": METHODS,
        "test_bad_fields.py::test_missing_namespace_is_named_by_every_call": METHODS,
        "test_bad_edges.py::test_huge_time_is_clamped_and_not_refused": METHODS,
        "test_bad_ids.py::test_id_of_another_namespace_is_not_found_and_its_item_is_unchanged": METHODS,
        "test_bad_ids.py::test_id_that_was_never_issued_is_not_found": METHODS,
        "test_bad_ids.py::test_duplicate_id_is_refused_the_second_time": METHODS,
        "test_bad_ids.py::test_every_call_on_an_acked_item_changes_nothing": METHODS,
        "test_bad_ids.py::test_malformed_or_foreign_cursor_is_refused": METHODS,
        "test_bad_ids.py::test_bad_entry_affects_no_other": METHODS,
        "test_bad_ids.py::test_wrong_token_changes_nothing": METHODS,
        "test_bad_ids.py::test_ended_lease_can_be_acked_and_extended_and_only_until_the_next_lease": LATE,
        "test_leases.py::test_ended_lease_can_be_extended_until_the_item_is_leased_again": LATE,
        "test_leases.py::test_extension_that_arrives_after_a_nack_changes_nothing": "the older host accepts no lease_ms of 0",
        "test_enqueue_dequeue.py::test_item_is_delivered_as_it_was_enqueued": INCARNATIONS,
        "test_enqueue_dequeue.py::test_best_priority_is_first_and_within_it_the_oldest_item": ORDER,
        "test_enqueue_dequeue.py::test_items_come_in_the_order_in_which_they_were_sent_one_after_the_other": ORDER,
        "test_leases.py::test_trace_and_first_delivery_outlast_nack_release_update_and_redrive": "the older host refuses "
        "a trace context, see test_newer_field_is_not_sent_to_an_older_host",
    },
}


@dataclass(slots=True, frozen=True)
class Suite:
    """A behavioural suite and the client that it plays with.

    Attributes:
        whose: a key of `DIFFERENT`.
        folder: holds `tests`.
        client: the folder of its packages.
    """

    whose: str
    folder: Path
    client: Path

    def play(self, host: RestartableHost, files: Sequence[str]) -> None:
        """Play the stories of these files on a host; each that is not in `DIFFERENT` must succeed."""
        selected = "sqlite" if files is ALL else f"sqlite and not ({' or '.join(SLOW)})"
        left_out = [f"--deselect=tests/behaviour/{name}[sqlite]" for name in DIFFERENT[self.whose]]
        path = os.pathsep.join(map(str, (self.client, self.folder, ROOT / "tests" / "compat")))
        outcome = subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "-p", "external_host", "-p", "no:cacheprovider", "-p", "no:xdist"),
                *("-o", "pythonpath=", "-q", "--tb=short", "-k", selected, *left_out),
                *(f"tests/behaviour/{name}" for name in files),
            ],
            cwd=self.folder,
            env={
                **os.environ,
                "PYTHONPATH": path,
                "FOQS_EXTERNAL_HOST": f"{host.port},{host.http_port}",
                "FOQS_EXTERNAL_CLIENT": str(self.client),
            },
            capture_output=True,
            text=True,
            check=False,
        )
        assert outcome.returncode == 0, outcome.stdout[-6_000:] + outcome.stderr[-2_000:]


@pytest.fixture(scope="module")
def older(pytestconfig: pytest.Config) -> OlderVersion:
    return installed(pytestconfig, OLDER)


def older_suite(older: OlderVersion) -> Suite:
    return Suite("older", older.suite, older.site)


def current_suite() -> Suite:
    return Suite("current", ROOT, ROOT / "client")


@pytest.fixture
def older_host(older: OlderVersion, tmp_path: Path) -> Iterator[RestartableHost]:
    with RestartableHost(tmp_path, f"sqlite:{tmp_path / 'data'}", OLDER_OPTIONS, older.host) as host:
        host.start()
        yield host


@pytest.mark.parametrize(
    "files", [pytest.param(SHORT, id="short"), pytest.param(ALL, marks=pytest.mark.long, id="all")]
)
def test_older_client_plays_its_suite_on_a_host_of_this_version(
    older: OlderVersion, files: Sequence[str], tmp_path: Path
) -> None:
    with RestartableHost(tmp_path, f"sqlite:{tmp_path / 'data'}", OPTIONS, PATIENT_HOST) as host:
        host.start()
        older_suite(older).play(host, files)


@pytest.mark.parametrize(
    "files", [pytest.param(SHORT, id="short"), pytest.param(ALL, marks=pytest.mark.long, id="all")]
)
def test_client_of_this_version_plays_the_suite_on_an_older_host(
    older_host: RestartableHost, files: Sequence[str]
) -> None:
    current_suite().play(older_host, files)


@pytest.mark.long
@pytest.mark.mysql
@pytest.mark.parametrize("client", ["older", "current"])
def test_suites_play_on_hosts_of_the_other_version_over_mariadb(
    older: OlderVersion, client: str, tmp_path: Path
) -> None:
    suite, command, options = (
        (older_suite(older), PATIENT_HOST, OPTIONS)
        if client == "older"
        else (current_suite(), older.host, OLDER_OPTIONS)
    )
    with running("mariadb") as server:
        url = f"mysql://root@127.0.0.1:{server.port}/{server.database()}"
        with RestartableHost(tmp_path, url, options, command) as host:
            host.start()
            suite.play(host, ALL)


def test_newer_field_is_not_sent_to_an_older_host(older_host: RestartableHost) -> None:
    async def main() -> None:
        async with Client(older_host.address) as client:
            known, newer = await client.enqueue([Item("t", b"known"), Item("t", b"newer", trace_context=b"x")])
            assert known.require()
            assert isinstance(newer.error, NotImplementedYet)
            assert newer.error.field == "items[1].trace_context"
            [delivery] = await client.dequeue({"t": 5})
            assert (delivery.payload, delivery.trace_context, delivery.first_delivery_age_ms) == (b"known", None, None)

    run(main())


def test_newer_call_to_an_older_host_is_not_implemented(older_host: RestartableHost) -> None:
    async def main() -> None:
        async with Client(older_host.address) as client:
            with pytest.raises(NotImplementedYet, match="the host does not know this call"):
                await call_once(client, "gossip", ttypes.GossipRequest())

    run(main())
