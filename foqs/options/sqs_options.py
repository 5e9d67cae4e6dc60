"""The options of `[sqs]`: the SQS server, for programs written for Amazon SQS.

Knows nothing of the protocol.
"""

from __future__ import annotations

import re
from typing import Final

from pydantic import field_validator

from foqs.options.options import InvalidOption, Options, option

ACCOUNT_DEFAULT: Final = "000000000000"
_ACCOUNT: Final = re.compile(r"(?:[a-z0-9-]{1,64}:)?[0-9]{12}", re.ASCII)
"""An account, or an account in one region."""
_NAME_BYTES_MAX: Final = 255


class SqsOptions(Options):
    """The SQS server, for programs written for Amazon SQS. server.sqs_port turns it on; the limits of [rpc] hold there too."""

    accounts: dict[str, str] = option(
        {ACCOUNT_DEFAULT: "default"},
        "tables",
        "The namespace of each account: the 12 digits that queue URLs and ARNs contain. The first account is that "
        "of calls which name no queue, such as CreateQueue; an endpoint URL that ends with /ACCOUNT/ chooses another. "
        'A key "REGION:ACCOUNT" is the account for calls that are signed for this region, and for ARNs of it; other '
        "regions use the key without a region.",
        change="Add one for each namespace that programs for SQS use.",
    )
    queues_max: int = option(
        1_000,
        "queues",
        "The queues of a namespace. Their attributes are in the catalog, whose size catalog.bytes_max limits.",
        1,
        100_000,
        change="Raise it if CreateQueue is refused with OverLimit.",
    )

    @field_validator("accounts")
    @classmethod
    def _check_accounts(cls, accounts: dict[str, str]) -> dict[str, str]:
        if not accounts:
            raise InvalidOption("there is no account", f'write {{"{ACCOUNT_DEFAULT}" = "default"}}')
        for account, namespace in accounts.items():
            if not _ACCOUNT.fullmatch(account):
                raise InvalidOption(
                    f"{account!a} is not an account",
                    f'write 12 digits; for an account in one region "us-west-2:{ACCOUNT_DEFAULT}"',
                )
            if not 1 <= len(namespace.encode()) <= _NAME_BYTES_MAX or "\0" in namespace:
                raise InvalidOption(f"{namespace!a} is not the name of a namespace", "write 1 to 255 bytes")
        return accounts
