"""What the site of ``docs/`` needs beyond the pages; ``mkdocs.yml`` names it, and mkdocs calls ``on_…``."""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath
from typing import Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

PAGES_ABOVE: Final = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
_LINK: Final = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")
#: The reason in the comment above a block of commands that no test runs: docs/tested-commands.md.
_NOT_RUN: Final = re.compile(r"^ *<!-- commands: played, (.*) -->$", re.MULTILINE)
_COMMENT: Final = re.compile(r"^ *<!-- commands: .* -->\n", re.MULTILINE)
_LIST_OF_NOT_RUN: Final = "<!-- made by the site: commands that are only played -->"


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """``files`` and the pages that lie where forges look for them, above ``docs/``."""
    for name in PAGES_ABOVE:
        files.append(File.generated(config, name, abs_src_path=str(Path(config.docs_dir).parent / name)))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """``markdown`` as the site shows it: see :func:`with_links_of_the_site` and :func:`played_commands`."""
    shown = with_links_of_the_site(_COMMENT.sub("", markdown), page.file.src_uri, config.repo_url)
    if _LIST_OF_NOT_RUN in shown:
        texts = {file.src_uri: file.content_string for file in files.documentation_pages()}
        shown = shown.replace(_LIST_OF_NOT_RUN, played_commands(texts))
    return shown


def with_links_of_the_site(markdown: str, page_uri: str, repository_url: str | None) -> str:
    """``markdown`` with links between the repository's files led to pages of the site, or to the repository.

    Without ``repository_url`` of a link to what the site lacks its text remains, which names the file.
    ``page_uri`` is the page's path on the site.
    """
    folder = PurePosixPath() if page_uri in PAGES_ABOVE else PurePosixPath("docs", page_uri).parent

    def site_link(match: re.Match[str]) -> str:
        text, target = match.groups()
        if "://" in target or target.startswith("#"):
            return match[0]
        path, mark, anchor = target.partition("#")
        path = os.path.normpath(folder / path)
        if path.startswith("docs/") or path in PAGES_ABOVE:
            uri = os.path.relpath(path.removeprefix("docs/"), PurePosixPath(page_uri).parent)
            return f"[{text}]({uri}{mark}{anchor})"
        return f"[{text}]({repository_url.rstrip('/')}/blob/main/{path})" if repository_url else text

    return _LINK.sub(site_link, markdown)


def played_commands(pages: dict[str, str]) -> str:
    """A table of the blocks whose commands no test runs, with their reasons; ``pages`` are all texts."""
    rows = [
        f"| [{uri}]({uri}) | {reason} |" for uri in sorted(pages) for reason in _NOT_RUN.findall(pages[uri])
    ]
    return "\n".join(["| Page | Why its commands are not run |", "| --- | --- |", *rows])
