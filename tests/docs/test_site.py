"""The pages make a site, without a warning, and nothing of it comes from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from tests.docs.pages import PAGES, TOP, blocks

_RESOURCE = re.compile(r"<(?:script|img|link|iframe|source)\b[^>]*(?:src|href)=\"?([^\" >]+)")

_SITE_PAGES = [page for page in PAGES if page.name != "README.md"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built with no network: its proxies are ports where nobody listens."""
    directory = tmp_path_factory.mktemp("site")
    nowhere = "http://127.0.0.1:9"
    # With --quiet a warning would not end it, not even with --strict.
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", directory],
        cwd=TOP,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "http_proxy": nowhere, "https_proxy": nowhere},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert built.returncode == 0, f"make docs: {built.stderr}"
    return directory


def test_every_page_is_on_the_site(site: Path) -> None:
    assert [page for page in _SITE_PAGES if not _site_page(site, page).exists()] == []


def test_a_reader_of_the_site_fetches_nothing_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        resources = _RESOURCE.findall(page.read_text())
        assert len(resources) > 3
        assert [resource for resource in resources if "//" in resource] == []


def test_the_comments_about_commands_are_not_on_the_site(site: Path) -> None:
    assert "commands: run by" in (TOP / "docs" / "recovery.md").read_text()
    assert "commands: run by" not in (site / "recovery.html").read_text()


def test_pages_have_the_same_lists_blocks_and_tables_on_the_site_as_in_the_repository(site: Path) -> None:
    """mkdocs wants more spaces and empty lines than forges do: nested blocks are indented by four."""
    differ = []
    for page in _SITE_PAGES:
        repository = MarkdownIt("commonmark").enable("table").render(page.read_text())
        shown = _site_page(site, page).read_text().partition("<article")[2].partition("</article>")[0]
        expected = {tag: repository.count(f"<{tag}>") for tag in ("li", "ol", "pre", "table", "ul")}
        if page.name == "tested-commands.md":
            expected["table"] += 1
        found = {tag: len(re.findall(f"<{tag}[ >]", shown)) for tag in expected}
        if found != expected:
            differ.append((page.name, found, expected))
    assert differ == []


def test_the_site_lists_the_commands_that_no_test_runs(site: Path) -> None:
    shown = (site / "tested-commands.html").read_text()
    pages = {block.page.name for page in PAGES for block in blocks(page) if block.played}
    assert pages
    for page in pages:
        assert (
            f'<td><a href="{page.replace(".md", ".html")}"' in shown
            or f"/{page.replace('.md', '.html')}" in shown
        )


def _site_page(site: Path, page: Path) -> Path:
    folder = TOP / "docs" if page.is_relative_to(TOP / "docs") else TOP
    return (site / page.relative_to(folder)).with_suffix(".html")
