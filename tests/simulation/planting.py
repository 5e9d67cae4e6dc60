"""Plants a bug, or a measurement: replaces what a module or a class defines under a name.

Always true: a missing name is an error, so a planted bug whose target was renamed
fails instead of doing nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import TypeVar

_T = TypeVar("_T")


def plant(owner: ModuleType | type, name: str, bug: _T) -> _T:
    """Replace what `owner` defines by a bug of the same type. Returns the original; raises KeyError if the name is missing."""
    original: _T = vars(owner)[name]
    setattr(owner, name, bug)
    return original


def wrap(owner: ModuleType | type, name: str, make: Callable[[_T], _T]) -> None:
    """Replace what `owner` has by `make(original)`. Raises AttributeError if the name is missing."""
    setattr(owner, name, make(getattr(owner, name)))
