"""Hooks of the documentation site: publish the files outside docs/ that its pages link to.

The links in the Markdown of this repository are relative to each file (`../config/east.toml`,
`../README.md`), so that they work in a checkout. On the site, Markdown of the top folder
becomes pages below project/, and any other file is copied below project/files/. A link to a folder
leads to its index; without an index it becomes plain text.

Reads:  the Markdown of docs/ and of the top folder.      Calls: mkdocs, which calls this.
Never:  hides a dead link: it is left unchanged, so the strict build fails.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
DOCS = PurePosixPath("docs")
_LINK = re.compile(r"(?<=\]\()(?![a-z+]+:|#|<)(?P<path>[^)\s#]+)(?P<anchor>#[^)\s]*)?(?=\))")
_TO_FOLDER = re.compile(r"(?<!!)\[(?P<text>[^\]\n]*)\]\((?![a-z+]+:|#|<)(?P<path>[^)\s#]+)\)")
_INDEXES = tuple(f"{stem}.md" for stem in ("index", "README"))
_FENCE = re.compile(r"^(```|~~~).*?^\1\s*$", re.MULTILINE | re.DOTALL)


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the files outside docs/ that pages link to, and the files that those link to in turn."""
    waiting = [DOCS / file.src_uri for file in files.documentation_pages()]
    while waiting:
        source = waiting.pop()
        for target in _linked(source, (ROOT / source).read_text(encoding="utf-8")):
            uri = _place(target)
            if files.get_file_from_path(uri) is not None or not (ROOT / target).is_file():
                continue
            files.append(File.generated(config, uri, abs_src_path=str(ROOT / target)))
            if uri.endswith(".md"):
                waiting.append(target)
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite links from places in the repository to places on the site."""
    source = _source(page.file.src_uri)

    def moved(match: re.Match[str]) -> str:
        target = _target(source, match["path"])
        if target is None or not (ROOT / target).is_file():
            return match.group()
        here = PurePosixPath(page.file.src_uri).parent
        return os.path.relpath(_place(target), here) + (match["anchor"] or "")

    def without_folder(match: re.Match[str]) -> str:
        target = _target(source, match["path"])
        if target is None or not (ROOT / target).is_dir():
            return match.group()
        index = next((name for name in _INDEXES if (ROOT / target / name).is_file()), None)
        if index is None or not target.is_relative_to(DOCS):
            return match["text"]
        return f"[{match['text']}]({match['path'].rstrip('/')}/{index})"

    return _LINK.sub(moved, _TO_FOLDER.sub(without_folder, markdown))


def _linked(source: PurePosixPath, text: str) -> Iterator[PurePosixPath]:
    for match in _LINK.finditer(_FENCE.sub("", text)):
        target = _target(source, match["path"])
        if target is not None:
            yield target


def _target(source: PurePosixPath, path: str) -> PurePosixPath | None:
    """Return the target of a link, relative to the top folder; None = outside that folder."""
    target = PurePosixPath(os.path.normpath(source.parent / path))
    return None if ".." in target.parts or target.is_absolute() else target


def _place(target: PurePosixPath) -> str:
    """Return the place on the site for a file of the repository."""
    if target.is_relative_to(DOCS):
        return str(target.relative_to(DOCS))
    if target.suffix == ".md" and len(target.parts) == 1:
        return f"project/{target}"
    if target.suffix == ".md":  # not a page of its own: as text, with links that lead nowhere
        return f"project/files/{target}.txt"
    return f"project/files/{target}"


def _source(uri: str) -> PurePosixPath:
    """Return the place in the repository of a page of the site: the inverse of `_place`."""
    parts = PurePosixPath(uri).parts
    return PurePosixPath(*parts[1:]) if parts[0] == "project" else DOCS / uri
