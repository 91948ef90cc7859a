"""Hooks of the documentation site: what pages link to outside docs/ is published with them.

The Markdown of this repository links as it lies (`../config/east.toml`, `../README.md`), so that
it can be read in a checkout. On the site, Markdown of the top folder becomes pages below project/,
and any other file is copied below project/files/. A link to a folder leads to its index, and is
plain text where there is none.

Reads:  the Markdown of docs/ and of the top folder.      Calls: mkdocs, which calls this.
Never:  hides a dead link: what does not exist is left as it is, and the strict build fails.
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
    """Add what is linked to and lies outside docs/, and what that links to."""
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
    """Rewrite links from where the file lies in the repository to where it is on the site."""
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
    """Return the target of a link in a file, from the top folder; None = it is outside."""
    target = PurePosixPath(os.path.normpath(source.parent / path))
    return None if ".." in target.parts or target.is_absolute() else target


def _place(target: PurePosixPath) -> str:
    """Return the place on the site of a file of the repository."""
    if target.is_relative_to(DOCS):
        return str(target.relative_to(DOCS))
    if target.suffix == ".md" and len(target.parts) == 1:
        return f"project/{target}"
    if target.suffix == ".md":  # not a page of its own: as text, with links that lead nowhere
        return f"project/files/{target}.txt"
    return f"project/files/{target}"


def _source(uri: str) -> PurePosixPath:
    """Return the place of a page in the repository: the inverse of `_place`."""
    parts = PurePosixPath(uri).parts
    return PurePosixPath(*parts[1:]) if parts[0] == "project" else DOCS / uri
