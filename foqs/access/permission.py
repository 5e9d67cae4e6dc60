"""What a grant on a namespace allows."""

from __future__ import annotations

import enum


class Permission(enum.IntEnum):
    """What a principal may do in a namespace; the numbers of `Permission` in thrift/foqs.thrift."""

    ENQUEUE = 1
    CONSUME = 2
    ADMIN = 3
