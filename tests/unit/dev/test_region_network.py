"""A kernel that allows no namespaces is named, and any other error is one."""

from __future__ import annotations

import ctypes
import errno
from pathlib import Path
from types import SimpleNamespace

import pytest

from foqs.dev import region_network
from foqs.dev.region_network import RegionNetwork
from foqs.dev.server_process import ServerNotAvailable


def open_files() -> set[str]:
    """Return the numbers of the open files. Those of an earlier test may still be closed by its threads."""
    return {path.name for path in Path("/proc/self/fd").iterdir()}


@pytest.fixture
def fail(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Let the kernel refuse a namespace with the error of the parameter."""

    def unshare(_: int) -> int:
        ctypes.set_errno(request.param)
        return -1

    monkeypatch.setattr(region_network, "_libc", SimpleNamespace(unshare=unshare))


@pytest.mark.parametrize("fail", [errno.EPERM, errno.ENOSYS, errno.EINVAL], indirect=True)
@pytest.mark.usefixtures("fail")
def test_refused_namespace_is_not_available_and_leaves_no_file_open() -> None:
    before = open_files()
    with pytest.raises(ServerNotAvailable, match="a distance between regions needs root"):
        RegionNetwork(["r1", "r2"])
    assert open_files() <= before


@pytest.mark.parametrize("fail", [errno.EMFILE], indirect=True)
@pytest.mark.usefixtures("fail")
def test_other_error_is_raised() -> None:
    with pytest.raises(OSError, match="Too many open files"):
        RegionNetwork(["r1", "r2"])
