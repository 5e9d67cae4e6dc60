"""Tests of the checks of requests: an error says what to do."""

from __future__ import annotations

import pytest

from foqs.core.items.validation import check_size
from foqs_contract.errors import LimitExceeded


@pytest.mark.parametrize(("field", "ceiling"), [("payload", 1_114_112), ("metadata", 1_024)])
def test_bytes_that_no_namespace_can_allow_name_no_command(field: str, ceiling: int) -> None:
    with pytest.raises(LimitExceeded) as refused:
        check_size(b"x" * (ceiling + 1), ceiling, field)
    assert str(refused.value).endswith("make it smaller")


@pytest.mark.parametrize("field", ["payload", "metadata"])
def test_bytes_beyond_the_limit_of_the_namespace_name_the_command_that_raises_it(field: str) -> None:
    assert check_size(b"x" * 10, 10, field) == b"x" * 10
    with pytest.raises(LimitExceeded) as refused:
        check_size(b"x" * 11, 10, field)
    assert refused.value.field == field
    assert str(refused.value).endswith(f"foqs namespace update NAME --{field}-bytes-max N")
