"""For tests of programs that use a queue: a host without a process, a port or a file."""

from foqs.testing.fake_host import FakeHost, SyncFakeHost

__all__ = ["FakeHost", "SyncFakeHost"]
