"""A text that only counts is shown once in a while, and any other text at once."""

from __future__ import annotations

from shardmgr.step_texts import StepTexts


def test_text_that_counts_is_shown_again_only_after_a_pause() -> None:
    texts = StepTexts(1_000)
    shown = [lag for lag in range(100, 0, -1) if texts.is_news(f"it lacks {lag} transactions", 7, (100 - lag) * 100)]
    assert shown == [100, 90, 80, 70, 60, 50, 40, 30, 20, 10]


def test_two_texts_that_alternate_are_shown_after_a_pause_each() -> None:
    texts = StepTexts(1_000)
    assert sum(texts.is_news(f"follow {'bc'[turn % 2]}", 7, turn * 100) for turn in range(30)) == 6


def test_text_that_stays_is_shown_once() -> None:
    texts = StepTexts(1_000)
    assert [texts.is_news("at rest", 7, now_ms) for now_ms in (0, 500, 5_000)] == [True, False, False]


def test_text_of_another_version_of_the_entry_is_shown_at_once() -> None:
    texts = StepTexts(1_000)
    assert [texts.is_news(f"now fenced in term {version}", version, 0) for version in (1, 2, 3)] == [True] * 3


def test_what_it_remembers_is_bounded() -> None:
    texts = StepTexts(1_000)
    for number in range(1_000):
        assert texts.is_news("x" * (number + 1), 7, 0)
    assert len(texts._shown_ms) <= 100
