"""What clients hold: message ids, receipt handles, queue URLs, ARNs."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from foqs.core.items.item import NUMBER_MAX, SEQUENCE_BITS, SEQUENCE_MAX, SHARD_MAX
from foqs.sqs.errors import SqsError
from foqs.sqs.identifiers import (
    Account,
    QueueName,
    Receipt,
    check_queue_name,
    item_id_of_message,
    message_id,
    page_token,
    parse_account,
    parse_arn,
    parse_page_token,
    parse_queue_url,
    parse_receipt_handle,
    receipt_handle,
)

SHARDS = st.integers(0, SHARD_MAX)
NUMBERS = st.integers((1 << SEQUENCE_BITS) + 1, NUMBER_MAX).filter(lambda number: bool(number & SEQUENCE_MAX))
TOKENS = st.integers(-(1 << 63), (1 << 63) - 1)


@given(SHARDS, NUMBERS)
@example(SHARD_MAX, NUMBER_MAX)
def test_a_message_id_is_a_uuid_that_names_one_item(shard: int, number: int) -> None:
    text = message_id(f"{shard}-{number}")
    assert UUID(text).version == 8
    assert UUID(text).variant == "specified in RFC 4122"
    assert item_id_of_message(text) == f"{shard}-{number}"


@given(SHARDS, NUMBERS, TOKENS)
def test_a_receipt_handle_names_one_delivery(shard: int, number: int, token: int) -> None:
    assert parse_receipt_handle(receipt_handle("mail", f"{shard}-{number}", token), "mail") == Receipt(
        shard, number, token
    )


@given(st.text(max_size=60) | st.binary(max_size=40).map(lambda data: data.hex()))
def test_other_texts_are_no_receipt_handles(text: str) -> None:
    found = parse_receipt_handle(text, "mail")
    assert found is None or receipt_handle("mail", found.item_id, found.token) == text


def test_a_handle_with_one_changed_character_is_none_or_another() -> None:
    text = receipt_handle("mail", "3-8796093022209", 77)
    for place in range(len(text)):
        changed = text[:place] + ("A" if text[place] != "A" else "B") + text[place + 1 :]
        assert parse_receipt_handle(changed, "mail") != parse_receipt_handle(text, "mail")
    assert parse_receipt_handle("x" * 2_000, "mail") is None
    assert parse_receipt_handle(text, "other") is None


@pytest.mark.parametrize(
    ("url", "queue"),
    [
        ("http://127.0.0.1:9324/000000000000/mail", QueueName(Account("000000000000", "r"), "mail")),
        ("https://sqs.eu-west-1.amazonaws.com/123456789012/mail", QueueName(Account("123456789012", "r"), "mail")),
        ("http://q.example/prefix/123456789012/mail/", QueueName(Account("123456789012", "r"), "mail")),
        ("/123456789012/mail", QueueName(Account("123456789012", "r"), "mail")),
        ("mail", QueueName(Account("000000000000", "r"), "mail")),
        ("http://q.example", None),
        ("http://q.example/mail", None),
        ("http://q.example/1/mail", None),
        ("", None),
        ("http://[", None),
    ],
)
def test_a_queue_url_names_account_and_queue_but_no_region(url: str, queue: QueueName | None) -> None:
    assert parse_queue_url(url, Account("000000000000", "r")) == queue


@pytest.mark.parametrize("region", ["eu-west-1", "us-east-1", "elsewhere", ""])
def test_an_arn_names_region_account_and_queue(region: str) -> None:
    queue = QueueName(Account("123456789012", region), "mail")
    assert queue.arn == f"arn:aws:sqs:{region}:123456789012:mail"
    assert parse_arn(queue.arn) == queue


def test_a_text_that_is_not_the_arn_of_a_queue_names_none() -> None:
    for wrong in (
        "",
        "mail",
        "arn:aws:sns:eu-west-1:123456789012:mail",
        "arn:aws:sqs:eu-west-1:1:mail",
        f"arn:aws:sqs:{'r' * 65}:123456789012:mail",
    ):
        assert parse_arn(wrong) is None


@pytest.mark.parametrize(
    ("key", "account"),
    [
        ("000000000000", Account("000000000000")),
        ("us-west-2:000000000000", Account("000000000000", "us-west-2")),
    ],
)
def test_a_key_of_the_accounts_is_the_text_of_its_account(key: str, account: Account) -> None:
    assert parse_account(key) == account
    assert account.text == key


@pytest.mark.parametrize("name", ["", "a" * 81, "/my/test", "a b", "ä", "a.b", ".fifo"])
def test_names_that_sqs_does_not_allow_are_refused(name: str) -> None:
    with pytest.raises(SqsError, match="Can only include alphanumeric"):
        check_queue_name(name)


def test_a_page_token_is_the_last_name_of_a_page() -> None:
    token = page_token("1 QueueUrls", "mail")
    assert parse_page_token("1 QueueUrls", token) == "mail"
    for wrong in (
        "",
        "é",
        "abc",
        "____",
        "bWFpbA==",
        "AAAAAG1haWw=",
        f"{token}!",
        f" {token}",
        token.rstrip("="),
        token[:-4],
    ):
        with pytest.raises(SqsError, match="next token"):
            parse_page_token("1 QueueUrls", wrong)


def test_a_page_token_of_another_listing_is_refused() -> None:
    for other in ("2 QueueUrls", "1 queueUrls"):
        with pytest.raises(SqsError, match="next token"):
            parse_page_token("1 QueueUrls", page_token(other, "mail"))
