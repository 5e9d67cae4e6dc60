"""The initial data folder of a MySQL 9 server, which is fetched and not installed.

Always true: root has no password, and can come from this machine only, as with the
MariaDB server beside it. Knows neither where the program comes from nor queues.
"""

from __future__ import annotations

import fcntl
import getpass
import hashlib
import shutil
import tempfile
from pathlib import Path
from typing import Final

from foqs.dev.server_process import give_to_user, run_program

_USERS: Final = "CREATE USER root@127.0.0.1 IDENTIFIED BY '';\nGRANT ALL ON *.* TO root@127.0.0.1 WITH GRANT OPTION;\n"
"""The statements that let root come from this machine's address, as with MariaDB; MySQL lets it come through the socket only."""
REDO_LOG: Final = "--innodb-redo-log-capacity=96M"


def first_data(program: str, user: str | None) -> Path:
    """Return MySQL's initial data folder for one version and user, to be copied. The first caller creates it, others wait."""
    mark = hashlib.sha256(run_program([program, "--version"]).encode()).hexdigest()[:12]
    base = Path(tempfile.gettempdir()) / f"foqs-mysql9-template-{getpass.getuser()}-{mark}"
    base.mkdir(mode=0o755, exist_ok=True)
    with (base / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        data, fresh = base / "data", base / "fresh"
        if not data.exists():
            shutil.rmtree(fresh, ignore_errors=True)
            fresh.mkdir()
            give_to_user(fresh, user)
            users = base / "users.sql"
            users.write_text(_USERS)
            as_user = [f"--user={user}"] if user else []
            command = [program, "--initialize-insecure", f"--datadir={fresh}", f"--init-file={users}", REDO_LOG]
            run_program([*command, *as_user])
            (fresh / "auto.cnf").unlink()  # each copy is a server of its own
            fresh.rename(data)
    return data
