"""Tests the pauses between attempts."""

from __future__ import annotations

from random import Random

from foqs_contract.backoff import Backoff


def test_pauses_double_up_to_the_limit() -> None:
    backoff = Backoff(0.5, 3.0)
    assert [backoff.pause_s(failures) for failures in (0, 1, 2, 3, 1_000_000)] == [0.5, 1.0, 2.0, 3.0, 3.0]


def test_jitter_is_drawn_once_for_each_pause_and_keeps_to_its_bounds() -> None:
    rng, draws = Random(1), Random(1)
    shorter, longer = Backoff(1.0, 8.0, rng), Backoff(1.0, 8.0, rng, (1.0, 1.25))
    for failures in range(100):
        plain_s = min(8.0, 2.0**failures)
        assert shorter.pause_s(failures) == plain_s * (0.5 + draws.random() / 2)
        assert longer.pause_s(failures) == plain_s * (1 + 0.25 * draws.random())


def test_no_pause_is_shorter_than_asked_for() -> None:
    rng = Random(1)
    for jitter in ((0.5, 1.0), (1.0, 1.25)):
        backoff = Backoff(0.1, 1.0, rng, jitter)
        for _ in range(100):
            assert 2.0 <= backoff.pause_s(0, 2_000) <= 2.0 * jitter[1]
    assert Backoff(0.1, 1.0).pause_s(0, 2_000) == 2.0
