"""The parser and cryptsetup agree on headers that cryptsetup made."""

import json
from pathlib import Path

import pytest

from agent.luks2 import Header, newest_valid, parse_pair
from agent.luks2_profile import FOREIGN, FORMAT_1, Profile, ProfileViolation, audit, require_equal_copies
from tests.differential.cryptsetup import dumped_fields, run
from tests.differential.made_headers import KEY, RECIPES, Recipe

AREA_BYTES = 8 * 1024 * 1024


def fits(header: Header, profile: Profile) -> bool:
    try:
        audit(header, profile)
    except ProfileViolation:
        return False
    return True


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_metadata_and_fields_agree(recipe: Recipe, tmp_path: Path) -> None:
    """Acceptance 5: metadata agrees, before the profile; and the profiles hold where they should."""
    image = tmp_path / "image"
    recipe.make(image)
    with image.open("rb") as device:
        area = device.read(AREA_BYTES)
    header = newest_valid(area, image.stat().st_size)

    dumped = json.loads(run("luksDump", "--dump-json-metadata", image).stdout)
    assert dict(header.metadata) == dumped
    assert header.duplicate_members == ()
    fields = dumped_fields(image)
    assert fields == {
        "Version": "2",
        "Epoch": str(header.binary.sequence),
        "Metadata area": f"{header.binary.header_size_bytes} [bytes]",
        "Keyslots area": f"{header.image_bytes - 2 * header.binary.header_size_bytes} [bytes]",
        "UUID": header.binary.uuid,
        "Label": header.binary.label or "(no label)",
        "Subsystem": header.binary.subsystem or "(no subsystem)",
    }
    assert fits(header, FORMAT_1) == recipe.in_format_1
    assert fits(header, FOREIGN) == recipe.foreign


def test_both_copies_that_cryptsetup_writes_are_equal_and_the_audit_tells_the_facts(tmp_path: Path) -> None:
    image = tmp_path / "image"
    RECIPES[0].make(image)
    with image.open("rb") as device:
        area = device.read(4 * 1024 * 1024)
    require_equal_copies(area)
    pair = parse_pair(area)
    assert isinstance(pair.primary, Header)
    audited = audit(pair.primary, FORMAT_1)
    assert audited.keyslot_ids == (0,)
    assert audited.header_image_bytes == 32768 + 1048576
    assert run("luksUUID", image).stdout.decode().strip() == audited.uuid
    assert run("open", "--test-passphrase", "--key-file=-", image, key=KEY).returncode == 0
