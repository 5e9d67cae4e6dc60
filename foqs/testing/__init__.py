"""A host without a process, port or file, for tests of programs that use a queue."""

from foqs.testing.fake_host import FakeHost, SyncFakeHost

__all__ = ["FakeHost", "SyncFakeHost"]
