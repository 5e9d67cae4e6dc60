"""Tests of the choice of a Python for the environment."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """A folder for PATH with all that the script calls, and no Python."""
    folder = tmp_path / "tools"
    folder.mkdir()
    (folder / "tr").symlink_to(str(shutil.which("tr")))
    return folder


def python(
    folder: Path, name: str = "python3.11", *, venv: bool = True, optimised: bool = False, released: bool = True
) -> str:
    """A stand-in that answers the script's questions as such a Python would; its path."""
    folder.mkdir(parents=True, exist_ok=True)
    made = folder / name
    made.write_text(
        f"""#!{shutil.which("sh")}
case "$2" in
*releaselevel*) exit {0 if venv and released else 1} ;;
*version_info*) exit 0 ;;
*ensurepip*) exit {0 if venv else 1} ;;
*enable-optimizations*) exit {0 if optimised else 1} ;;
esac
exit 2
"""
    )
    made.chmod(0o755)
    return str(made)


def chosen(
    *path: Path, asked: str | None = None, beside: str | None = None, home: str = "/nowhere"
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(shutil.which("sh")), "tools/python.sh", *(() if beside is None else ("beside", beside))],
        cwd=ROOT,
        env={"PATH": ":".join(map(str, path)), "HOME": home, **({"PYTHON": asked} if asked else {})},
        capture_output=True,
        text=True,
        check=False,
    )


def test_python_built_with_profiles_precedes_others(tools: Path, tmp_path: Path) -> None:
    python(tmp_path / "version manager")
    good = python(tmp_path / "distribution", "python3.12", optimised=True)

    done = chosen(tmp_path / "version manager", tmp_path / "distribution", tools)

    assert (done.returncode, done.stdout, done.stderr) == (0, f"{good}\n", "")


def test_without_one_the_first_that_has_venv_is_taken(tools: Path, tmp_path: Path) -> None:
    python(tmp_path / "no venv", venv=False)
    python(tmp_path / "good but no venv", venv=False, optimised=True)
    usable = python(tmp_path / "with spaces")
    python(tmp_path / "later")

    done = chosen(*(tmp_path / name for name in ("no venv", "good but no venv", "with spaces", "later")), tools)

    assert (done.returncode, done.stdout, done.stderr) == (0, f"{usable}\n", "")


def test_requested_python_is_the_first(tools: Path, tmp_path: Path) -> None:
    asked = python(tmp_path / "asked", "my-python")
    python(tmp_path / "distribution", optimised=True)

    assert chosen(tmp_path / "distribution", tools, asked=asked).stdout == f"{asked}\n"


@pytest.mark.parametrize("there", [False, True])
def test_missing_python_is_reported(tools: Path, tmp_path: Path, *, there: bool) -> None:
    if there:
        python(tmp_path / "bare", venv=False)

    done = chosen(tmp_path / "bare", tools)

    assert (done.returncode, done.stdout) == (1, "")
    assert "python3-venv" in done.stderr
    assert ("its venv module is missing" in done.stderr) == there


def test_running_python_is_acceptable() -> None:
    """The script's questions are ones that a real Python answers."""
    done = chosen(Path(shutil.which("tr") or "").parent, asked=sys.executable)

    assert done.returncode == 0


def test_the_newest_released_python_beside_the_usual_one_is_found(tools: Path, tmp_path: Path) -> None:
    python(tmp_path / "distribution", "python3.11", optimised=True)
    python(tmp_path / "distribution", "python3.12")
    python(tmp_path / "distribution", "python3.15", released=False)
    python(tmp_path / "distribution", "python3.14", venv=False)
    newest = python(tmp_path / "home" / ".pyenv" / "versions" / "3.13.0" / "bin", "python3.13")
    path = tmp_path / "distribution", tools

    assert chosen(*path, beside="3.11", home=str(tmp_path / "home")).stdout == f"{newest}\n"
    assert chosen(*path, beside="3.13", home=str(tmp_path / "home")).stdout == f"{tmp_path}/distribution/python3.12\n"


def test_no_python_beside_the_usual_one_is_no_error(tools: Path, tmp_path: Path) -> None:
    python(tmp_path / "distribution", "python3.11", optimised=True)

    done = chosen(tmp_path / "distribution", tools, beside="3.11")

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
