"""Message ids, receipt handles, queue URLs, ARNs and page tokens: what SQS' clients hold, and what FOQS calls it.

Always true: a message id is a UUID and a receipt handle is opaque text; both name one
item, have one spelling each, and are checked before they are used; a page token belongs to one
listing. Pure.
"""

from __future__ import annotations

import base64
import binascii
import re
import struct
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import unquote
from uuid import UUID
from zlib import crc32

from foqs.core.items.item import NUMBER_MAX, SEQUENCE_BITS, SEQUENCE_MAX, SHARD_MAX
from foqs.sqs.errors import SqsError

ACCOUNT: Final = re.compile(r"[0-9]{12}", re.ASCII)
REGION: Final = re.compile(r"[a-z0-9-]{1,64}", re.ASCII)
"""Replies repeat the region of an ARN."""
QUEUE_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,80}", re.ASCII)
FIFO_SUFFIX: Final = ".fifo"
RECEIPT_HANDLE_CHARS_MAX: Final = 1_024

_HANDLE: Final = struct.Struct(">BIHqq")
_HANDLE_VERSION: Final = 1
_UUID_VERSION_8: Final = 8 << 76
_UUID_VARIANT: Final = 2 << 62
_LOW_BITS: Final = 62
_LOW_MASK: Final = (1 << _LOW_BITS) - 1


@dataclass(slots=True, frozen=True)
class Receipt:
    """One delivery of one item."""

    shard: int
    number: int
    token: int

    @property
    def item_id(self) -> str:
        return f"{self.shard}-{self.number}"


@dataclass(slots=True, frozen=True)
class Account:
    """An account as a call or an ARN names it.

    `region` is that of the signature or of the ARN. Only `QueueDirectory` knows whether it matters: two regions without
    keys of their own in `sqs.accounts` see the same queues.
    """

    digits: str
    region: str = ""

    @property
    def text(self) -> str:
        """The account as a key of `sqs.accounts`."""
        return f"{self.region}:{self.digits}" if self.region else self.digits


def parse_account(key: str) -> Account:
    """Return the account of a key of `sqs.accounts`."""
    region, _, digits = key.rpartition(":")
    return Account(digits, region)


@dataclass(slots=True, frozen=True)
class QueueName:
    """The name of an SQS queue: its account, and its name within the account.

    Two names that differ may be of one queue: `QueueDirectory.is_same` compares queues.
    """

    account: Account
    name: str

    @property
    def is_fifo(self) -> bool:
        return self.name.endswith(FIFO_SUFFIX)

    @property
    def arn(self) -> str:
        return f"arn:aws:sqs:{self.account.region}:{self.account.digits}:{self.name}"


def message_id(item_id: str) -> str:
    """Return the MessageId of an item: a UUID of version 8 that holds the shard and the number."""
    shard, _, number_text = item_id.partition("-")
    number = int(number_text)
    high = (int(shard) << 80) | _UUID_VERSION_8 | ((number >> _LOW_BITS) << 64)
    return str(UUID(int=high | _UUID_VARIANT | (number & _LOW_MASK)))


def item_id_of_message(text: str) -> str:
    """Return the item id of a MessageId. Raises ValueError if it is not one of `message_id`."""
    value = UUID(text).int
    number = (((value >> 64) & 1) << _LOW_BITS) | (value & _LOW_MASK)
    item_id = f"{value >> 80}-{number}"
    if message_id(item_id) != text or not _is_item(value >> 80, number):
        raise ValueError(f"{text} is not the id of a message")
    return item_id


def receipt_handle(queue_name: str, item_id: str, token: int) -> str:
    """Return the ReceiptHandle of a delivery from a queue."""
    shard, _, number = item_id.partition("-")
    packed = _HANDLE.pack(_HANDLE_VERSION, crc32(queue_name.encode()), int(shard), int(number), token)
    return base64.urlsafe_b64encode(packed).decode()


def parse_receipt_handle(text: str, queue_name: str) -> Receipt | None:
    """Return the delivery that a handle names; None if it is not a handle of this queue."""
    if len(text) > RECEIPT_HANDLE_CHARS_MAX:
        return None
    try:
        _, _, shard, number, token = _HANDLE.unpack(base64.urlsafe_b64decode(text.encode("ascii")))
    except (ValueError, binascii.Error, struct.error):
        return None
    receipt = Receipt(shard, number, token)
    is_own = _is_item(shard, number) and receipt_handle(queue_name, receipt.item_id, token) == text
    return receipt if is_own else None


def _is_item(shard: int, number: int) -> bool:
    return shard <= SHARD_MAX and 1 << SEQUENCE_BITS < number <= NUMBER_MAX and bool(number & SEQUENCE_MAX)


# ---------------------------------------------------------------------- queues


def parse_queue_url(text: str, account_default: Account) -> QueueName | None:
    """Return the queue of a QueueUrl, a path or a name; None if it names none.

    The host of a URL is not compared: one host has many names. A URL names no region: it is that of `account_default`.
    """
    scheme, is_url, rest = text.partition("://")
    path = rest.partition("/")[2] if is_url else scheme
    parts = [unquote(part) for part in path.split("/") if part]
    if len(parts) >= 2 and ACCOUNT.fullmatch(parts[-2]):
        return QueueName(replace(account_default, digits=parts[-2]), parts[-1])
    if len(parts) == 1 and not is_url:
        return QueueName(account_default, parts[0])
    return None


def parse_arn(text: str) -> QueueName | None:
    """Return the queue of an ARN; None if it is not the ARN of a queue. Any region is accepted."""
    parts = text.split(":")
    if len(parts) != 6 or parts[0] != "arn" or parts[2] != "sqs" or not ACCOUNT.fullmatch(parts[4]):
        return None
    if parts[3] and not REGION.fullmatch(parts[3]):
        return None
    return QueueName(Account(parts[4], parts[3]), parts[5])


def check_queue_name(text: str) -> str:
    """Return the name of a queue to be created. Raises `SqsError`."""
    if not QUEUE_NAME.fullmatch(text.removesuffix(FIFO_SUFFIX)) or len(text) > 80:
        raise SqsError(
            "InvalidParameterValueException",
            "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length",
        )
    return text


def page_token(listing: str, last_name: str) -> str:
    """Return the NextToken of a listing after this name."""
    check = crc32(f"{listing} {last_name}".encode()).to_bytes(4)
    return base64.urlsafe_b64encode(check + last_name.encode()).decode()


def parse_page_token(listing: str, text: str) -> str:
    """Return the name after which a page begins. Raises `SqsError` if the text is not a token of this listing."""
    try:
        last_name = base64.urlsafe_b64decode(text.encode("ascii"))[4:].decode()
    except (ValueError, binascii.Error):
        last_name = ""
    if text != page_token(listing, last_name):
        raise SqsError("InvalidParameterValueException", "Invalid or expired next token.")
    return last_name
