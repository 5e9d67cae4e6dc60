"""The Django project of docs/django.md in a folder, and its commands as processes."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import django

from tests.support.processes import RestartableHost

PAGE: Final = (Path(__file__).parents[2] / "docs" / "django.md").read_text()
_WITH_OWN_TASKS: Final = {'"django_tasks", ': "", "from django_tasks import": "from django.tasks import"}
"""What the comments of the page say for Django 6, which has tasks itself."""


def _files() -> dict[str, str]:
    text = PAGE
    for old, new in _WITH_OWN_TASKS.items() if django.VERSION >= (6,) else ():
        assert old in text
        text = text.replace(old, new)
    return dict(re.findall(r"```python\n# (\S+)\n(.*?)```", text, re.DOTALL))


FILES: Final = _files()
"""The programs of the page, by their names, for the Django that is installed."""


class Project:
    """The project of the page in a folder."""

    def __init__(self, folder: Path, host: RestartableHost) -> None:
        self.folder = folder
        for name, text in FILES.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(text.replace("foqs://127.0.0.1:7411", host.address))
        (folder / "shop" / "__init__.py").touch()

    def append(self, name: str, text: str) -> None:
        with (self.folder / name).open("a") as file:
            file.write(text)

    def run(self, *command: str) -> str:
        done = subprocess.run([sys.executable, *command], cwd=self.folder, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def create_tables(self) -> None:
        self.run("manage.py", "makemigrations", "shop")
        self.run("manage.py", "migrate")

    @contextmanager
    def running(self, command: str) -> Iterator[subprocess.Popen[str]]:
        """Run a command of manage.py. It stops in order at the end, unless it was killed."""
        with self.log(command).open("a") as log:
            process = subprocess.Popen(
                [sys.executable, "manage.py", command], cwd=self.folder, stdout=log, stderr=log, text=True
            )
        try:
            yield process
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=60)
            assert process.returncode in (0, -signal.SIGKILL), self.log(command).read_text()
        finally:
            process.kill()
            process.wait()

    def log(self, command: str) -> Path:
        """Return the file of what a command has written."""
        return self.folder / f"{command}.log"

    def result(self, task: str, id: str) -> list[str]:
        """Return the status and the value of a result."""
        return self.run("-c", FILES["look.py"].replace("thank", task), id).split(maxsplit=1)
