"""Tests the check of a namespace's key window."""

from __future__ import annotations

import pytest

from foqs_client import Namespace
from foqs_client.spark.item_columns import SinkError
from foqs_client.spark.start_check import check_key_window


def test_window_of_the_wanted_length_is_enough() -> None:
    check_key_window(Namespace("orders", key_window_ms=86_400_000), 86_400_000)


@pytest.mark.parametrize(
    ("window_ms", "wanted_ms", "texts"),
    [
        (600_000, 86_400_000, ("keys for 10m,", "run again 24h after", "namespace update orders --key-window 24h")),
        (90_500, 5_400_000, ("keys for 90500ms,", "--key-window 90m")),
        (None, 120_000, ("keys for 0ms,", "--key-window 2m")),
    ],
)
def test_shorter_window_is_refused_with_the_command_that_sets_it(
    window_ms: int | None, wanted_ms: int, texts: tuple[str, ...]
) -> None:
    with pytest.raises(SinkError) as raised:
        check_key_window(Namespace("orders", key_window_ms=window_ms), wanted_ms)
    for text in texts:
        assert text in str(raised.value)
