"""Tests of the item commands, with a client that records its calls: arguments, output, exit codes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from inspect import isawaitable
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from foqs.cli import root
from foqs.cli.commands import enqueue_command, item_commands
from foqs.cli.host_session import DEFAULT_ADDRESS
from foqs_client import (
    Deliveries,
    Delivery,
    Enqueued,
    FoqsError,
    InvalidArgument,
    Item,
    ItemCount,
    ItemFilter,
    ItemPage,
    ItemView,
    LimitExceeded,
    NotFound,
    Outcome,
    StaleLease,
    Topic,
    TopicPage,
    Unavailable,
    Unreachable,
)


class FakeClient:
    """Records calls and answers from `answers`, by method; an exception there is raised."""

    tracing = None

    def __init__(self) -> None:
        self.opened: list[tuple[str, str, int]] = []
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self.answers: dict[str, Any] = {}
        self.closed = 0

    def connect(self, address: str, namespace: str, timeout_ms: int) -> FakeClient:
        self.opened.append((address, namespace, timeout_ms))
        return self

    async def __aenter__(self) -> FakeClient:
        if isinstance(self.answers.get("connect"), Exception):
            raise self.answers["connect"]
        return self

    async def __aexit__(self, *why: object) -> None:
        self.closed += 1

    def __getattr__(self, method: str) -> Callable[..., Any]:
        async def call(*args: Any, **options: Any) -> Any:
            self.calls.append((method, args, options))
            answer = self.answers[method]
            if callable(answer):
                answer = answer(*args, **options)
            if isawaitable(answer):
                answer = await answer
            if isinstance(answer, Exception):
                raise answer
            return answer

        return call


@pytest.fixture
def client() -> FakeClient:
    return FakeClient()


@pytest.fixture
def run(client: FakeClient, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    for name in ("FOQS_ADDRESS", "FOQS_NAMESPACE", "FOQS_CONFIG"):
        monkeypatch.delenv(name, raising=False)

    def invoke(*args: str, stdin: str | bytes | None = None, **environment: str) -> Result:
        result = CliRunner().invoke(root, args, input=stdin, obj=client.connect, env=environment)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return invoke


def enqueued(items: Sequence[Item], *, atomic: bool = False) -> list[Enqueued]:
    return [Enqueued(f"0-{number}", None, False) for number, _ in enumerate(items, 1)]


DELIVERY = Delivery(
    id="0-7",
    token=9,
    topic="mail",
    priority=-5,
    payload=b"hello",
    metadata=b"\xff",
    attempt=1,
    attempts_max=0,
    lease_remaining_ms=29_000,
    age_ms=1_500,
    first_delivery_age_ms=700,
    trace_context=b"00-ab",
    group="customer 7",
)
VIEW = ItemView(
    id="0-7",
    topic="mail",
    state="ready",
    priority=1,
    payload=b"a\x1b[2Jb",
    metadata=b"",
    at_most_once=False,
    attempt=2,
    attempts_max=5,
    lease_ms=30_000,
    age_ms=10,
    due_in_ms=None,
    lease_remaining_ms=None,
    ttl_remaining_ms=None,
    payload_bytes=6,
    idempotency_key=None,
    dead_reason=None,
)
TOPIC = Topic(
    topic="[red]mail",
    ready=1,
    deferred=2,
    leased=3,
    dead=4,
    best_priority=-1,
    oldest_ready_age_ms=1_000,
    next_due_in_ms=None,
    paused=True,
    counts_lag=True,
)


# ------------------------------------------------------------------- enqueue


def test_enqueue_passes_every_setting(run: Callable[..., Result], client: FakeClient) -> None:
    client.answers["enqueue"] = enqueued
    options = (
        "--priority -5 --delay 2s --lease 1m --ttl 1h --attempts 3 --at-most-once --metadata m --idempotency-key k"
    )
    result = run("enqueue", "mail", "hello", *options.split(), "-o", "json")
    assert result.exit_code == 0
    assert json.loads(result.stdout) == [{"id": "0-1", "outcome": "enqueued", "message": None}]
    [(_, (items,), _)] = client.calls
    assert items == [
        Item(
            topic="mail",
            payload=b"hello",
            priority=-5,
            metadata=b"m",
            delay_ms=2_000,
            lease_ms=60_000,
            ttl_ms=3_600_000,
            attempts_max=3,
            at_most_once=True,
            idempotency_key="k",
        )
    ]
    assert client.opened == [(DEFAULT_ADDRESS, "default", 10_000)]
    assert client.closed == 1


def test_enqueue_takes_the_payload_from_stdin_or_a_file(
    run: Callable[..., Result], client: FakeClient, tmp_path: Path
) -> None:
    client.answers["enqueue"] = enqueued
    file = tmp_path / "payload"
    file.write_bytes(b"\x00\xff\n")
    assert run("enqueue", "t", "-", stdin=b"a\nb\n").exit_code == 0
    assert run("enqueue", "t", f"@{file}").exit_code == 0
    assert run("enqueue", "t").exit_code == 0
    assert [call[1][0][0].payload for call in client.calls] == [b"a\nb\n", b"\x00\xff\n", b""]


def test_enqueue_makes_an_item_of_each_line_in_batches(run: Callable[..., Result], client: FakeClient) -> None:
    client.answers["enqueue"] = enqueued
    lines = [str(number).encode() for number in range(enqueue_command.BATCH_ITEMS + 1)]
    result = run("enqueue", "t", "--lines", "-o", "jsonl", stdin=b"\r\n".join(lines))
    assert result.exit_code == 0
    assert len(result.stdout.splitlines()) == len(lines)
    assert [len(call[1][0]) for call in client.calls] == [enqueue_command.BATCH_ITEMS, 1]
    assert [item.payload for call in client.calls for item in call[1][0]] == lines


def test_enqueue_repeats_a_payload(run: Callable[..., Result], client: FakeClient) -> None:
    client.answers["enqueue"] = enqueued
    result = run("enqueue", "t", "x", "--count", "3")
    assert result.exit_code == 0
    assert [item.payload for item in client.calls[0][1][0]] == [b"x"] * 3
    assert [line.split() for line in result.stdout.splitlines()[1:]] == [[f"0-{n}", "enqueued"] for n in (1, 2, 3)]


def test_an_atomic_enqueue_is_one_call_or_none(run: Callable[..., Result], client: FakeClient) -> None:
    client.answers["enqueue"] = enqueued
    assert run("enqueue", "t", "--lines", "--atomic", stdin=b"a\nb\n").exit_code == 0
    [(_, (items,), options)] = client.calls
    assert ([item.payload for item in items], options["atomic"]) == ([b"a", b"b"], True)
    result = run("enqueue", "t", "x", "--atomic", "--count", str(enqueue_command.BATCH_ITEMS + 1))
    assert "too many for one atomic call" in result.stderr
    assert len(client.calls) == 1


def test_batches_stay_below_their_bytes() -> None:
    big = b"x" * (enqueue_command.BATCH_BYTES // 2 + 1)
    assert [len(batch) for batch in enqueue_command.batches([big, big, b"", b"y"])] == [1, 3]
    assert list(enqueue_command.batches([])) == []


def test_a_failure_hides_no_id_that_was_committed_before(run: Callable[..., Result], client: FakeClient) -> None:
    answers: Iterator[Any] = iter([None, InvalidArgument("too long", field="items[0].payload")])
    client.answers["enqueue"] = lambda items, **options: next(answers) or enqueued(items)
    result = run("enqueue", "t", "x", "--count", str(enqueue_command.BATCH_ITEMS + 1), "-o", "json")
    assert result.exit_code == 2
    assert len(json.loads(result.stdout)) == enqueue_command.BATCH_ITEMS
    assert result.stderr == "Error: INVALID_ARGUMENT (items[0].payload): too long\n"


def test_one_bad_item_of_a_batch_is_shown_among_the_good(run: Callable[..., Result], client: FakeClient) -> None:
    client.answers["enqueue"] = [Enqueued("0-1", None, True), Enqueued(None, NotFound("gone"), False)]
    result = run("enqueue", "t", "x", "--count", "2", "-o", "json")
    assert result.exit_code == 4
    assert [(row["id"], row["outcome"]) for row in json.loads(result.stdout)] == [
        ("0-1", "repeated"),
        (None, "NOT_FOUND"),
    ]
    assert "(1 of 2 failed, at place 2)" in result.stderr


def test_refused_items_of_a_large_enqueue_are_named_by_their_places(
    run: Callable[..., Result], client: FakeClient
) -> None:
    full = LimitExceeded(
        "the namespace is full; consume some and try again, or raise its limit", field="items", retry_after_ms=1_000
    )
    calls: Iterator[bool] = iter([False, True, False])
    client.answers["enqueue"] = lambda items, **options: (
        [Enqueued(None, full, False)] * len(items) if next(calls) else enqueued(items)
    )
    result = run("enqueue", "t", "x", "--count", "1100")
    assert result.stderr == (
        "Error: LIMIT_EXCEEDED (items): the namespace is full; consume some and try again, or raise its limit "
        "(500 of 1100 failed, at places 501 to 1000)\n"
    )
    assert "calls of at most 500 items" in " ".join(run("enqueue", "--help").stdout.split())


def test_equal_refusals_are_one_row_of_the_table(run: Callable[..., Result], client: FakeClient) -> None:
    refused = [Enqueued(None, NotFound("gone"), False)] * 1_000
    client.answers["enqueue"] = [*refused, Enqueued("0-1", None, False), *refused[:1]]
    result = run("enqueue", "t", "x", "--count", "3")
    lines = [line.split(maxsplit=1) for line in result.stdout.splitlines()[1:]]
    assert lines == [["-", "NOT_FOUND, 1,000 items"], ["0-1", "enqueued"], ["-", "NOT_FOUND"]]
    assert len(json.loads(run("enqueue", "t", "x", "--count", "3", "-o", "json").stdout)) == 1_002


# ------------------------------------------------------------ dequeue and ack


def test_dequeue_shows_the_delivered_items(run: Callable[..., Result], client: FakeClient) -> None:
    client.answers["dequeue"] = [DELIVERY]
    result = run("dequeue", "mail=10", "sms", "--wait", "30s", "--lease", "1m", "--run-max", "3", "-o", "jsonl")
    assert result.exit_code == 0
    assert json.loads(result.stdout) == {
        "id": "0-7",
        "token": 9,
        "topic": "mail",
        "priority": -5,
        "payload": "hello",
        "metadata": None,
        "metadata_base64": "/w==",
        "attempt": 1,
        "attempts_max": 0,
        "lease_remaining_ms": 29_000,
        "age_ms": 1_500,
        "first_delivery_age_ms": 700,
        "trace_context": "00-ab",
        "group": "customer 7",
    }
    assert client.calls == [
        (
            "dequeue",
            ({"mail": 10, "sms": 1},),
            {"wait_ms": 30_000, "lease_ms": 60_000, "run_max": 3, "timeout_ms": 35_000},
        )
    ]


def test_dequeue_acks_only_with_the_option(run: Callable[..., Result], client: FakeClient) -> None:
    client.answers |= {"dequeue": [DELIVERY], "ack": [Outcome(None, False)]}
    assert run("dequeue", "mail").exit_code == 0
    assert [call[0] for call in client.calls] == ["dequeue"]
    assert run("dequeue", "mail", "--ack").exit_code == 0
    assert client.calls[-1] == ("ack", ([DELIVERY],), {})


def test_items_that_cannot_be_shown_are_released(
    run: Callable[..., Result], client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed(*arguments: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(item_commands, "show_rows", closed)
    client.answers |= {"dequeue": [DELIVERY], "release": [Outcome()]}
    with pytest.raises(BrokenPipeError):
        run("dequeue", "mail", "--ack")
    assert client.calls[1:] == [("release", ([DELIVERY],), {})]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signal_cancels_a_dequeue_and_closes_the_client(
    number: signal.Signals, run: Callable[..., Result], client: FakeClient
) -> None:
    async def wait_for_items(*arguments: object, **options: object) -> None:
        os.kill(os.getpid(), number)
        await asyncio.Event().wait()

    client.answers["dequeue"] = wait_for_items
    assert run("dequeue", "mail", "--wait", "30s").exit_code == 128 + number
    assert client.closed == 1


def test_dequeue_of_nothing_is_no_failure_and_prints_no_data(run: Callable[..., Result], client: FakeClient) -> None:
    client.answers.update(dequeue=Deliveries(), topics=TopicPage([], None))
    result = run("dequeue", "mail", "--ack")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "Nothing is ready.\n")
    assert run("dequeue", "mail", "-o", "json").stdout == "[]\n"
    assert "within 5.0s" in run("dequeue", "mail", "--wait", "5s").stderr


def test_empty_dequeue_says_how_many_shards_may_hold_items(run: Callable[..., Result], client: FakeClient) -> None:
    client.answers.update(dequeue=Deliveries((), 2), topics=TopicPage([], None))
    assert "2 shards are unavailable: there may be items (foqs shard list says why)." in run("dequeue", "mail").stderr
    client.answers["dequeue"] = Unavailable("there may be items, but no shard can deliver")
    assert (failed := run("dequeue", "mail")).exit_code == 1
    assert "there may be items" in failed.stderr


def test_lists_of_topics_say_how_many_shards_are_unavailable(run: Callable[..., Result], client: FakeClient) -> None:
    client.answers["topics"] = TopicPage([], None, 1)
    note = "1 shard is unavailable: topics may be missing, and items are not delivered (foqs shard list says why)."
    assert note in (listed := run("topic", "list", "-o", "json")).stderr
    assert listed.stdout == "[]\n"
    assert note in (shown := run("topic", "show", "mail")).stderr
    assert shown.exit_code == 1, "it may exist"


@pytest.mark.parametrize(
    ("count", "cursor", "note"),
    [
        (0, None, ""),
        (1, None, "1 topic has only deferred or dead items; list them with --all.\n"),
        (2, "next", "At least 2 topics have only deferred or dead items; list them with --all.\n"),
    ],
)
def test_list_of_active_topics_says_how_many_it_leaves_out(
    run: Callable[..., Result], client: FakeClient, count: int, cursor: str | None, note: str
) -> None:
    inactive = [replace(TOPIC, topic=f"dead-{n}", ready=0, leased=0, dead=1) for n in range(count)]

    def topics(*, states: Sequence[str] | None, **options: object) -> TopicPage:
        return TopicPage([TOPIC], None) if states is None else TopicPage([TOPIC, *inactive], cursor)

    client.answers["topics"] = topics
    shown = run("topic", "list")
    assert TOPIC.topic in shown.stdout
    assert "dead-0" not in shown.stdout
    assert shown.stderr == note


@pytest.mark.parametrize(
    "arguments",
    [
        ["dead", "list", "--topic", "shop.*"],
        ["peek", "shop.*"],
        ["dequeue", "shop.*"],
        ["topic", "show", "shop.*"],
        ["topic", "pause", "shop.*"],
        ["topic", "purge", "shop.*"],
        ["item", "cancel", "--topic", "shop.*"],
        ["dead", "redrive", "--topic", "shop.*"],
    ],
)
def test_command_for_one_topic_says_that_its_name_is_no_pattern(
    run: Callable[..., Result], client: FakeClient, arguments: list[str]
) -> None:
    client.answers.update(
        dead=ItemPage([], None),
        peek=ItemPage([], None),
        dequeue=Deliveries(),
        topics=TopicPage([], None),
        count=ItemCount(0, 0),
        pause_topic=None,
    )
    assert "Here * is no pattern" in run(*arguments).stderr
    assert "pattern" not in run(*arguments[:-1], "shop").stderr


def test_empty_dequeue_names_the_paused_topics(run: Callable[..., Result], client: FakeClient) -> None:
    client.answers.update(dequeue=Deliveries(), topics=TopicPage([replace(TOPIC, paused=True)], None))
    said = run("dequeue", TOPIC.topic, "other").stderr
    assert said == f"Nothing is ready. {TOPIC.topic} is paused; foqs topic resume '{TOPIC.topic}'\n"


def test_ack_shows_each_outcome_and_fails_with_the_first_error(run: Callable[..., Result], client: FakeClient) -> None:
    client.answers["ack"] = [Outcome(None, False), Outcome(None, True), Outcome(StaleLease("over"), False)]
    result = run("ack", "0-1:1", "0-2:2", "0-3:3", "-o", "json")
    assert result.exit_code == 1
    assert [row["outcome"] for row in json.loads(result.stdout)] == ["acked", "already gone", "STALE_LEASE"]
    assert result.stderr == "Error: STALE_LEASE: over (1 of 3 failed, at place 3)\n"
    assert client.calls == [("ack", ([("0-1", 1), ("0-2", 2), ("0-3", 3)],), {})]


def test_nack_passes_its_options(run: Callable[..., Result], client: FakeClient) -> None:
    client.answers["nack"] = [Outcome(None, False)]
    assert run("nack", "0-1", "5", "--delay", "5s", "--metadata", "m").exit_code == 0
    assert run("nack", "0-1:5", "--dead").exit_code == 0
    assert run("nack", "0-1:5", "--delay", "0").exit_code == 0
    assert run("nack", "0-1:5").exit_code == 0
    nacks = [call[1][0][0] for call in client.calls]
    assert [(nack.delay_ms, nack.metadata, nack.dead) for nack in nacks] == [
        (5_000, b"m", False),
        (None, None, True),
        (0, None, False),
        (None, None, False),
    ]


# ------------------------------------------------------------------- looking


def test_topic_list_goes_over_all_pages(run: Callable[..., Result], client: FakeClient) -> None:
    pages = {None: TopicPage([TOPIC], "next"), "next": TopicPage([TOPIC], None)}
    client.answers["topics"] = lambda **options: pages[options["cursor"]]
    result = run("topic", "list", "--all", "--prefix", "m", "-o", "json")
    assert [row["topic"] for row in json.loads(result.stdout)] == ["[red]mail"] * 2
    assert client.calls[0][2]["prefix"] == "m"
    assert set(client.calls[0][2]["states"]) == {"ready", "leased", "deferred", "dead"}


def test_a_table_shows_names_as_they_are(run: Callable[..., Result], client: FakeClient) -> None:
    client.answers["topics"] = TopicPage([TOPIC], None)
    result = run("topic", "list")
    assert result.stdout.splitlines()[1].split() == ["[red]mail", "~1", "~3", "~2", "~4", "-1", "1.0s", "yes"]
    assert client.calls[0][2]["states"] is None


def test_nothing_in_an_item_can_move_the_cursor(run: Callable[..., Result], client: FakeClient) -> None:
    client.answers |= {"peek": ItemPage([VIEW], None), "item": VIEW}
    for args in (("peek", "mail", "--payload"), ("item", "show", "0-7", "--payload")):
        result = run(*args)
        assert result.exit_code == 0
        assert "\x1b" not in result.stdout
        assert "a\\x1b[2Jb" in result.stdout


def test_a_table_never_cuts_an_id_short(run: Callable[..., Result], client: FakeClient) -> None:
    long_id = "65535-" + "9" * 19
    client.answers["enqueue"] = [Enqueued(long_id, None, False)]
    assert long_id in run("enqueue", "t", COLUMNS="10").stdout


def test_peek_stops_at_its_limit(run: Callable[..., Result], client: FakeClient) -> None:
    client.answers["peek"] = lambda topic, **options: ItemPage([VIEW] * options["limit"], "more")
    result = run("peek", "mail", "--limit", "700", "--state", "dead", "-o", "json")
    assert len(json.loads(result.stdout)) == 700
    assert [call[2]["limit"] for call in client.calls] == [500, 200]
    assert client.calls[0][2]["state"] == "dead"


def test_item_show_is_one_object_in_json(run: Callable[..., Result], client: FakeClient) -> None:
    client.answers["item"] = VIEW
    [row] = json.loads(run("item", "show", "0-7", "-o", "json").stdout)
    assert row["id"] == "0-7"
    assert row["state"] == "ready"
    client.answers["item"] = NotFound("no such item")
    assert run("item", "show", "0-8").exit_code == 4


def test_item_list_continues_over_short_pages_until_its_limit(run: Callable[..., Result], client: FakeClient) -> None:
    pages = iter([ItemPage([], "a", 1), ItemPage([VIEW] * 2, "b", 2), ItemPage([VIEW] * 3, "c", 3)])
    client.answers["list_items"] = lambda *args, **options: next(pages)
    result = run("item", "list", "3", "--topic", "t", "--topic", "u", "--state", "dead", "--limit", "5", "-o", "json")
    assert len(json.loads(result.stdout)) == 5
    only = ItemFilter(topics=["t", "u"], states=["dead"])
    assert [call[1] for call in client.calls] == [(3, only, 5, None), (3, only, 5, "a"), (3, only, 3, "b")]
    client.answers["list_items"] = ItemPage([], None, 1)
    assert "No item of this shard matches." in run("item", "list", "3").stderr


# ------------------------------------------------- addresses, errors, usage


def test_address_and_namespace_come_from_option_or_environment(run: Callable[..., Result], client: FakeClient) -> None:
    client.answers.update(dequeue=Deliveries(), topics=TopicPage([], None))
    run("dequeue", "t", FOQS_ADDRESS="foqs://a:1", FOQS_NAMESPACE="b")
    run("dequeue", "t", "--address", "foqs://c", "-n", "d", "--timeout", "1s", FOQS_ADDRESS="foqs://a:1")
    assert client.opened == [("foqs://a:1", "b", 10_000), ("foqs://c", "d", 1_000)]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Unreachable("no connection"), 3),
        (NotFound("x"), 4),
        (InvalidArgument("x"), 2),
        (StaleLease("x"), 1),
        (ValueError("a bad address"), 2),
    ],
)
def test_every_kind_of_failure_has_its_exit_code(
    run: Callable[..., Result], client: FakeClient, error: Exception, code: int
) -> None:
    client.answers["connect"] = error
    result = run("dequeue", "t")
    assert (result.exit_code, result.stdout) == (code, "")
    assert result.stderr.startswith("Error: ")
    assert len(result.stderr.splitlines()) == 1
    if isinstance(error, FoqsError):
        assert error.message in result.stderr


@pytest.mark.parametrize(
    "args",
    [
        "dequeue",
        "dequeue a=0",
        "dequeue a --wait 5",
        "dequeue a --timeout 0",
        "ack 0-1",
        "nack 0-1:1 --dead --delay 1s",
        "enqueue t x --lines",
        "enqueue t --lines --count 2",
        "enqueue t x --count 2 --idempotency-key k",
        "enqueue t --priority 9999999999",
        "peek t --state gone",
        "topic list -o yaml",
        "dev --data a --store memory:",
        "dev --port 99999",
        "dev --listen 0.0.0.0",
        "host",
        "host --config /no/such/file",
        "nonsense",
    ],
)
def test_wrong_usage_ends_with_exit_code_2_and_no_call(
    run: Callable[..., Result], client: FakeClient, args: str
) -> None:
    result = run(*args.split(), stdin=b"")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert client.opened == []


def commands(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        for name, part in command.commands.items():
            yield from commands(part, (*path, name))


def test_version_is_that_of_the_package(run: Callable[..., Result]) -> None:
    assert run("--version").stdout.startswith("foqs 0.")


def test_client_region_comes_from_the_command_line_or_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []

    class Client:
        def __init__(self, *args: object, region: str | None, **more: object) -> None:
            made.append(region)
            raise ValueError("enough")

    monkeypatch.setattr("foqs_client.Client", Client)
    for arguments, environment in (
        ([], {}),
        (["--client-region", "west"], {}),
        ([], {"FOQS_CLIENT_REGION": "east"}),
    ):
        CliRunner().invoke(root, ["peek", "t", *arguments], env=environment)
    assert made == [None, "west", "east"]
