#!/usr/bin/env python3
"""Compiles the hot modules with mypyc: `compile.py` builds extension modules beside the sources.

`compile.py --clean` removes them. `compile.py --copy` copies the tree to build/compiled and compiles there, so
that no extension module hides a source of this tree; a second run compiles only if a source changed. The list of modules is `[tool.foqs] compiled` in
pyproject.toml; hatch_build.py builds the same ones into a wheel. The sources stay
the specification: nothing is written for the compiler alone but explicit
constructors of dataclasses that are made for every item.
"""

from __future__ import annotations

import os
import shutil
import sys
import tomllib
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
GROUP: Final = "foqs_compiled"
"""The modules share one library, `foqs_compiled__mypyc`, beside the packages."""
COPY: Final = ROOT / "build" / "compiled"
NOT_COPIED: Final = (".*", "*.so", "build", "dist", "foqs-data", "results", "site", "node_modules", "__pycache__")


def sources(root: Path) -> list[str]:
    """Return the files to compile, relative to the root."""
    with (root / "pyproject.toml").open("rb") as file:
        modules: list[str] = tomllib.load(file)["tool"]["foqs"]["compiled"]
    return [f"{module.replace('.', '/')}.py" for module in modules]


def built(root: Path = ROOT) -> list[Path]:
    """Return the extension modules that are in the tree."""
    found = [path for source in sources(root) for path in (root / source).parent.glob(f"{Path(source).stem}.*.so")]
    return sorted({*found, *root.glob(f"{GROUP}__mypyc.*.so")})


def clean(root: Path = ROOT) -> None:
    for path in built(root):
        path.unlink()


def copy_tree() -> None:
    """Renew the copy of the tree. Its `build` stays, for the next compilation."""
    COPY.mkdir(parents=True, exist_ok=True)
    for old in COPY.iterdir():
        if old.is_dir() and old.name != "build":
            shutil.rmtree(old)
        elif old.is_file():
            old.unlink()
    shutil.copytree(ROOT, COPY, ignore=shutil.ignore_patterns(*NOT_COPIED), dirs_exist_ok=True)


def build(root: Path = ROOT) -> list[Path]:
    """Compile, and return the extension modules."""
    from mypyc.build import mypycify
    from setuptools import Distribution

    clean(root)
    os.chdir(root)
    # mypyc reads the packages as mypy does, from the root and from client/.
    os.environ["MYPYPATH"] = str(root / "client")
    options = ["--config-file", "pyproject.toml", *sources(root)]
    extensions = mypycify(options, opt_level="2", debug_level="0", group_name=GROUP, target_dir="build/mypyc")
    # Not `setup`, which would read pyproject.toml as a project of setuptools.
    command: Any = Distribution({"name": "foqs", "ext_modules": extensions}).get_command_obj("build_ext")
    command.inplace = True
    command.build_temp = "build/mypyc"
    command.ensure_finalized()
    command.run()
    return built(root)


if __name__ == "__main__":
    if sys.argv[1:] == ["--clean"]:
        clean()
    elif sys.argv[1:] == ["--copy"]:
        copy_tree()
        print(f"compiled {len(build(COPY)) - 1} modules in {COPY.relative_to(ROOT)}")
    else:
        print(f"compiled {len(build()) - 1} modules")
