"""Links and anchors lead somewhere, on the site and where the repository's files are shown."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from markdown.extensions.toc import slugify

from deploy.docs_site import with_links_of_the_site
from tests.docs.pages import PAGES, TOP, headings, links

_PAGE_NAMES = [str(page.relative_to(TOP)) for page in PAGES]


def repository_anchors(page: Path) -> set[str]:
    """As forges make them: letters in lower case, spaces as hyphens, other punctuation left out."""
    return {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in headings(page)}


def site_anchors(page: Path) -> set[str]:
    return {slugify(text, "-") for text in headings(page)}


def broken(page: Path, target: str) -> str | None:
    """What is wrong with a link to another place of the repository."""
    path, _, anchor = target.partition("#")
    file = (page.parent / path).resolve() if path else page
    if not file.exists():
        return f"{target}: there is no such file"
    if anchor and not (anchor in repository_anchors(file) and anchor in site_anchors(file)):
        return f"{target}: no heading has this anchor both on the site and in the repository"
    return None


@pytest.mark.parametrize("page", PAGES, ids=_PAGE_NAMES)
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    targets = [target for target in links(page) if "://" not in target]
    assert [wrong for target in targets if (wrong := broken(page, target))] == []


def test_a_link_to_nowhere_is_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A page\n[a](other.md) [b](#a-page) [c](#another) `[d](code.md)`\n")
    assert links(page) == ["other.md", "#a-page", "#another"]
    assert [broken(page, target) is None for target in links(page)] == [False, True, False]


def test_every_page_of_the_repository_is_reached_from_the_readme() -> None:
    reached, new = set(), {TOP / "README.md"}
    while new:
        reached |= new
        targets = {
            (page.parent / target.partition("#")[0]).resolve() for page in new for target in links(page)
        }
        new = {target for target in targets if target.suffix == ".md" and target.exists()} - reached
    assert set(PAGES) - reached == set()


def test_links_out_of_the_site_lead_to_the_repository_or_stay_text() -> None:
    markdown = "[a](../deploy/x.json) [b](flags.md#node) [c](https://example.org) [d](#e)"
    assert with_links_of_the_site(markdown, "aws.md", None) == markdown.replace("[a](../deploy/x.json)", "a")
    shown = with_links_of_the_site("[a](../../deploy/x.json)", "guides/eks.md", "https://git.example/csi/")
    assert shown == "[a](https://git.example/csi/blob/main/deploy/x.json)"


def test_pages_above_the_folder_of_pages_are_on_the_site() -> None:
    shown = with_links_of_the_site("[a](docs/aws.md#settings) [b](SECURITY.md)", "CHANGELOG.md", None)
    assert shown == "[a](aws.md#settings) [b](SECURITY.md)"
    assert with_links_of_the_site("[a](../../SECURITY.md)", "guides/eks.md", None) == "[a](../SECURITY.md)"
