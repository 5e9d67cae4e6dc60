"""The command of a question that the simulation asks apart: plays its seeds, with a planted bug if one is named."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable, Mapping, Sequence


def play_seeds(
    text: str,
    seeds: Sequence[int],
    play: Callable[[int], tuple[list[str], int]],
    counted: str,
    bugs: Mapping[str, Callable[[], None]],
) -> int:
    """Play all seeds, and print the violations. Returns the exit status: 1 if there is any, or if nothing was counted.

    Args:
        text: what the command does, for its help.
        play: plays one seed; returns its violations, and how often what is asked about happened.
        counted: what happened, in the plural.
        bugs: plants a bug, by its name.
    """
    logging.disable(logging.WARNING)
    parser = argparse.ArgumentParser(description=text)
    parser.add_argument("--plant", choices=sorted(bugs))
    planted = parser.parse_args().plant
    if planted:
        bugs[planted]()
    violations: list[str] = []
    count = 0
    for seed in seeds:
        found, happened = play(seed)
        violations += [f"seed {seed}: {violation}" for violation in found]
        count += happened
    print("\n".join(violations))
    print(f"{len(seeds)} seeds, {count} {counted}, {len(violations)} violations")
    return 1 if violations or not count else 0
