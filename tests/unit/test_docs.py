"""Links between pages, and from pages to files, lead somewhere."""

import re
from pathlib import Path

import pytest

_TOP = Path(__file__).parents[2]
_PAGES = [_TOP / "README.md", *sorted((_TOP / "docs").glob("*.md"))]
_LINK = re.compile(r"\]\(([^)#]+)(?:#[^)]*)?\)")


@pytest.mark.parametrize("page", _PAGES, ids=lambda page: page.name)
def test_every_link_leads_to_a_file(page: Path) -> None:
    targets = [target for target in _LINK.findall(page.read_text()) if "://" not in target]
    assert [target for target in targets if not (page.parent / target).exists()] == []
