"""Puts the documentation site together: a hook of mkdocs, see mkdocs.yml.

The site has the folders of the repository, so that a link works alike in a
checkout, on a code host and in the site. Pages are the Markdown files at the
top and under docs/, the generated pages under docs/reference/, and the Markdown
files that one of these links to. Another file that a page links to comes along
as text. Knows nothing of the product; see
`docs_reference`.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from tools.docs_reference import PAGES  # noqa: E402
from tools.docs_thrift import Unreadable  # noqa: E402

_LINK: Final = re.compile(r"\]\(<?([^)#\s>]+)|^\[[^\]]+\]: <?([^#\s>]+)|(?:href|src)=\"([^\"#]+)", re.MULTILINE)
_SHOWN: Final = (".md", ".svg", ".png", ".html")
"""Pages, and what a browser shows as it is. Other files outside docs/ get the ending .txt, so that it shows them too."""


def on_startup(command: str, dirty: bool) -> None:
    """Print warnings only. The option --quiet would drop those too, and nothing would fail."""
    if command == "build":
        logging.getLogger("mkdocs").setLevel(logging.WARNING)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Remove the page for unknown addresses: only a server shows it, and its links need a server."""
    config.theme.static_templates.discard("404.html")
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Return the files of the site under their paths in the repository."""
    of_theme = [file for file in files if file.src_dir != config.docs_dir]
    paths = [f"docs/{file.src_uri}" for file in files if file.src_dir == config.docs_dir]
    paths += [path.name for path in sorted(ROOT.glob("*.md"))]
    pages = {path: _file(path, config) for path in paths}
    for name, make in PAGES.items():
        path = f"docs/reference/{name}"
        try:
            pages[path] = File.generated(config, path, content=make())
        except Unreadable as error:
            raise PluginError(str(error)) from None
    for path in list(pages):
        for linked in _linked(path, pages[path]):
            pages.setdefault(linked, _file(linked, config))
    config.nav = _menu(config.nav or [], [path for path in pages if path.endswith(".md")])
    return Files([*of_theme, *pages.values()])


def _file(path: str, config: MkDocsConfig) -> File:
    shown = path.startswith("docs/") or path.endswith(_SHOWN)
    return File(path, str(ROOT), config.site_dir, config.use_directory_urls, dest_uri=None if shown else f"{path}.txt")


def _linked(path: str, file: File) -> Iterator[str]:
    """Yield the paths of repository files to which a page links."""
    if not path.endswith(".md"):
        return
    for found in _LINK.finditer(file.content_string):
        target = (ROOT / path).parent / unquote(next(filter(None, found.groups())))
        resolved = target.resolve()
        if resolved.is_file() and resolved.is_relative_to(ROOT):
            yield resolved.relative_to(ROOT).as_posix()


def _menu(entries: list[Any], paths: list[str]) -> list[Any]:
    """Return the menu with each pattern replaced by its matching pages."""
    menu: list[Any] = []
    for entry in entries:
        if isinstance(entry, str):
            menu += _matching(entry, paths)
            continue
        [(title, inner)] = entry.items()
        found = _menu(inner if isinstance(inner, list) else [inner], paths)
        if found:
            menu.append({title: found if isinstance(inner, list) or "*" in inner else found[0]})
    return menu


def _matching(pattern: str, paths: list[str]) -> list[str]:
    return sorted(path for path in paths if fnmatchcase(path, pattern))
