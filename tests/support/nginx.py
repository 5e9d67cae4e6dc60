"""A real nginx in front of a port of this machine.

Always true: it runs as one process of this user in a folder of its own, and is ended by
its process id when its `with` block ends. Knows nothing of what it passes on.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.support.poll import until

_PATHS: Final = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
_FRAME: Final = """
daemon off;
master_process off;
pid {folder}/pid;
error_log {folder}/error.log warn;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
{server}
}}
"""


@contextmanager
def nginx(folder: Path, server: str) -> Iterator[None]:
    """Run nginx with a `server` block, from when it listens to the end of the `with` block."""
    program = shutil.which("nginx", path=_PATHS)
    assert program is not None, "nginx is missing: make system-packages installs it"
    folder.mkdir()
    config = folder / "nginx.conf"
    config.write_text(_FRAME.format(folder=folder, server=server))
    log, pid = folder / "error.log", folder / "pid"
    process = subprocess.Popen([program, "-e", str(log), "-p", str(folder), "-c", str(config)])
    try:
        # It has bound its ports before it writes this file.
        until(lambda: process.poll() is not None or pid.exists(), "nginx starts")
        assert process.poll() is None, log.read_text()
        yield
    finally:
        process.terminate()
        process.wait(30)
    assert "[emerg]" not in log.read_text()
