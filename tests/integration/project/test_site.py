"""The documentation as a site: it builds without a dead link, and needs nothing from elsewhere."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
_LOADED = re.compile(
    r"<(?:script|img|link(?! rel=.?canonical))\b[^>]*\b(?:src|href)=\"?(https?:[^\" >]+)"
)


def build(root: Path, to: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(to)],
        cwd=root,
        env={"NO_MKDOCS_2_WARNING": "1", "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """The site of a repository with two files, to be spoilt."""
    (tmp_path / "docs/deep").mkdir(parents=True)
    (tmp_path / "tools").mkdir()
    for name in ("mkdocs.yml", "tools/site_hooks.py", "docs/.nav.yml", "docs/assets"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tmp_path / name)
    (tmp_path / "README.md").write_text("# Top\n\n## Part\n\nSee [deep](docs/deep/page.md#here).\n")
    (tmp_path / "given.toml").write_text("key = 1\n")
    (tmp_path / "docs/deep/page.md").write_text("# Deep\n\n## Here\n")
    return tmp_path


def test_the_site_has_no_dead_link_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    done = build(ROOT, tmp_path)
    assert done.returncode == 0, done.stderr
    pages = list(tmp_path.rglob("*.html"))
    assert tmp_path / "reference/settings.html" in pages
    assert {one for page in pages for one in _LOADED.findall(page.read_text())} == set()


def test_what_a_page_links_to_outside_docs_is_published(small: Path, tmp_path: Path) -> None:
    page = "# Deep\n\n## Here\n\n[top](../../README.md#part), [file](../../given.toml)\n"
    (small / "docs/deep/page.md").write_text(page)
    done = build(small, tmp_path / "site")
    assert done.returncode == 0, done.stderr
    html = (tmp_path / "site/deep/page.html").read_text()
    assert 'href="../project/index.html#part"' in html
    assert 'href="../project/files/given.toml"' in html
    assert (tmp_path / "site/project/files/given.toml").read_text() == "key = 1\n"
    assert 'href="../deep/page.html#here"' in (tmp_path / "site/project/index.html").read_text()


def test_a_link_to_a_folder_leads_to_its_index_or_is_plain_text(
    small: Path, tmp_path: Path
) -> None:
    (small / "docs/README.md").write_text("# Start\n\n[deep](deep/), [`tools`](../tools)\n")
    (small / "docs/deep/index.md").write_text("# Index\n\n[start](..)\n")
    done = build(small, tmp_path / "site")
    assert done.returncode == 0, done.stderr
    html = (tmp_path / "site/index.html").read_text()
    assert 'href="deep/index.html">deep</a>' in html
    assert "<code>tools</code>" in html
    assert ">`tools`</a>" not in html
    assert '<a href="../index.html">start</a>' in (tmp_path / "site/deep/index.html").read_text()


def test_a_dead_link_or_anchor_fails(small: Path, tmp_path: Path) -> None:
    dead = ("gone.md", "page.md#gone", "../../gone.toml", "../../README.md#lost")
    text = "".join(f"[link]({link})\n" for link in dead)
    (small / "docs/deep/other.md").write_text(f"# Other\n\n{text}")
    done = build(small, tmp_path / "site")
    assert done.returncode != 0
    for told in ("gone.md", "#gone", "gone.toml", "#lost"):
        assert told in done.stderr
