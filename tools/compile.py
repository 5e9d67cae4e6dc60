#!/usr/bin/env python3
"""Compiles the hot modules with mypyc: `compile.py` builds extension modules beside the sources.

`compile.py --clean` removes them. The list of modules is `[tool.foqs] compiled` in
pyproject.toml; hatch_build.py builds the same ones into a wheel. The sources stay
the specification: nothing is written for the compiler alone but explicit
constructors of dataclasses that are made for every item.
"""

from __future__ import annotations

import os
import sys
import tomllib
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
GROUP: Final = "foqs_compiled"
"""The modules share one library, `foqs_compiled__mypyc`, beside the packages."""


def sources() -> list[str]:
    """Return the files to compile, relative to the root."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        modules: list[str] = tomllib.load(file)["tool"]["foqs"]["compiled"]
    return [f"{module.replace('.', '/')}.py" for module in modules]


def built() -> list[Path]:
    """Return the extension modules that are in the tree."""
    found = [path for source in sources() for path in (ROOT / source).parent.glob(f"{Path(source).stem}.*.so")]
    return sorted({*found, *ROOT.glob(f"{GROUP}__mypyc.*.so")})


def clean() -> None:
    for path in built():
        path.unlink()


def build() -> list[Path]:
    """Compile, and return the extension modules."""
    from mypyc.build import mypycify
    from setuptools import Distribution

    clean()
    os.chdir(ROOT)
    # mypyc reads the packages as mypy does, from the root and from client/.
    os.environ["MYPYPATH"] = str(ROOT / "client")
    options = ["--config-file", "pyproject.toml", *sources()]
    extensions = mypycify(options, opt_level="2", debug_level="0", group_name=GROUP, target_dir="build/mypyc")
    # Not `setup`, which would read pyproject.toml as a project of setuptools.
    command: Any = Distribution({"name": "foqs", "ext_modules": extensions}).get_command_obj("build_ext")
    command.inplace = True
    command.build_temp = "build/mypyc"
    command.ensure_finalized()
    command.run()
    return built()


if __name__ == "__main__":
    if sys.argv[1:] == ["--clean"]:
        clean()
    else:
        print(f"compiled {len(build()) - 1} modules")
