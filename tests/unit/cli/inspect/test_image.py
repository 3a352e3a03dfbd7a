"""What is said of a disk image: proved where it can be, alarmed where it must be, and never changed."""

from __future__ import annotations

import json
import os
import random
import subprocess
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from agent.disk_format import Record, State
from cli.inspect.command import EXIT_ALARMS, EXIT_REMARKS
from cli.inspect.image import inspect_image
from cli.inspect.story import Story, Verdict
from cli.main import main
from tests.fakes import luks_headers as forged
from tests.unit.cli.inspect.images import MIB, READY, SIZE, digest, header_image, write_image


@pytest.fixture
def image(tmp_path: Path) -> Path:
    return tmp_path / "disk.raw"


def _section(story: Story, key: str) -> dict[str, Any]:
    return next(dict(section.facts) for section in story.sections if section.key == key)


def test_a_healthy_volume_is_proved(image: Path) -> None:
    story = inspect_image(write_image(image))
    assert (story.alarms, story.remarks, story.unseen) == ([], [], [])
    assert story.conclusion.startswith(
        "Encrypted, as far as a disk can show it: LUKS2 made by this driver's agent"
    )
    assert "aes-xts-plain64 with a 512-bit key (AES-256)" in story.conclusion
    header = _section(story, "header")
    assert header["uuid"] == forged.UUID
    assert header["primary copy"].startswith("valid")
    assert _section(story, "record 0")["state"] == "ready"
    assert _section(story, "record 1")["sequence"] == 4
    assert _section(story, "sample")["readable"] == 0
    verdicts = {one.name: one.verdict for one in story.statements}
    assert verdicts.pop("header-not-authenticated") is Verdict.UNKNOWN  # it takes the key
    assert set(verdicts.values()) == {Verdict.HOLDS}


def test_a_real_header_of_cryptsetup_is_read(image: Path) -> None:
    key = image.with_suffix(".key")
    key.write_bytes(os.urandom(32))
    image.write_bytes(b"")
    os.truncate(image, SIZE)
    formatting = "--type luks2 --cipher aes-xts-plain64 --key-size 512 --sector-size 4096 --pbkdf pbkdf2"
    sizes = "--pbkdf-force-iterations 1000 --hash sha256 --luks2-metadata-size 16k --luks2-keyslots-size 1m"
    command = ["/sbin/cryptsetup", "luksFormat", "-q", *f"{formatting} {sizes} --offset 8192".split()]
    subprocess.run([*command, f"--key-file={key}", image], check=True, capture_output=True)
    story = inspect_image(image)
    assert story.alarms == []
    assert "made by others" in story.conclusion
    assert "no record vouches for it" in story.conclusion
    assert "HMAC" not in story.conclusion
    assert any("adopt" in remark for remark in story.remarks)


def test_nothing_is_written_and_no_byte_read_twice(image: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_image(image, size=100 * MIB)
    before, times = digest(image), image.stat()
    read: list[tuple[int, int]] = []
    pread = os.pread

    def watched(descriptor: int, length: int, offset: int) -> bytes:
        read.append((offset, length))
        return pread(descriptor, length, offset)

    monkeypatch.setattr(os, "pread", watched)
    inspect_image(image)
    read.sort()
    assert all(start + length <= following for (start, length), (following, _) in pairwise(read))
    assert digest(image) == before
    assert (image.stat().st_mtime_ns, image.stat().st_size) == (times.st_mtime_ns, times.st_size)


@pytest.mark.parametrize(
    ("edit", "rule"),
    [(forged.null_segment, "header-segment-cipher"), (forged.null_keyslots, "header-keyslot-cipher")],
)
def test_a_forged_header_is_an_alarm(edit: Any, rule: str, image: Path) -> None:
    """Field case I1: a null cipher, with good checksums."""
    story = inspect_image(write_image(image, image=header_image(forged.forge(forged.build_area(), edit))))
    assert any(rule in alarm for alarm in story.alarms)
    assert story.conclusion.startswith("NOT PROVED")


def test_plaintext_under_a_good_header_is_an_alarm(image: Path, tmp_path: Path) -> None:
    plain = tmp_path / "plain.raw"
    plain.write_bytes(b"")
    os.truncate(plain, 16 * MIB)
    subprocess.run(["/sbin/mkfs.ext4", "-q", plain], check=True)
    story = inspect_image(write_image(image, data=plain.read_bytes()))
    assert any("without a key (an ext2, ext3 or ext4 file system)" in alarm for alarm in story.alarms)
    assert story.conclusion.startswith("NOT PROVED")


def test_a_disk_without_luks_is_called_not_encrypted(image: Path) -> None:
    image.write_bytes(b"")
    os.truncate(image, SIZE)
    subprocess.run(["/sbin/mkfs.ext4", "-q", image], check=True)
    story = inspect_image(image)
    assert story.conclusion.startswith("NOT ENCRYPTED")
    assert "ext4" in story.alarms[0]


def test_a_container_of_a_disk_is_not_judged(image: Path) -> None:
    image.write_bytes(b"QFI\xfb" + bytes(8 * MIB))
    story = inspect_image(image)
    assert story.alarms == []
    assert "qemu-img convert" in story.unseen[0]
    assert "nothing can be said" in story.conclusion


def test_a_blank_disk_is_no_alarm(image: Path) -> None:
    image.write_bytes(b"")
    os.truncate(image, SIZE)
    story = inspect_image(image)
    assert story.alarms == []
    assert story.conclusion.startswith("Blank")


def test_a_claimed_disk_is_told_from_foreign_data(image: Path) -> None:
    claim = Record.claim()
    story = inspect_image(write_image(image, image=b"", records={0: claim}, redo=b"half an image", data=b""))
    assert story.alarms == []
    assert story.conclusion.startswith("Claimed")


def test_an_unfinished_volume_is_a_remark(image: Path) -> None:
    story = inspect_image(
        write_image(image, records={1: replace(READY, sequence=2, state=State.INITIALISING)})
    )
    assert story.alarms == []
    assert any("initialising" in remark for remark in story.remarks)


def test_a_record_of_another_header_is_an_alarm(image: Path) -> None:
    other = replace(READY, luks_uuid="00000000-0000-4000-8000-000000000000")
    story = inspect_image(write_image(image, records={0: other, 1: other}))
    assert any(alarm.startswith("record-mismatch: UUID") for alarm in story.alarms)


def test_a_truncated_disk_is_an_alarm(image: Path) -> None:
    story = inspect_image(write_image(image, size=SIZE - MIB))
    assert any(alarm.startswith("device-too-small") for alarm in story.alarms)


def test_a_change_that_was_cut_short_is_no_damage(image: Path) -> None:
    whole = header_image()
    torn = bytearray(whole)
    torn[4096 : forged.METADATA_BYTES + 5000] = random.Random(5).randbytes(forged.METADATA_BYTES + 904)
    torn[:4] = b"LUKS"
    story = inspect_image(write_image(image, image=bytes(torn), redo=whole))
    assert story.alarms == []
    assert "cut short" in story.conclusion
    assert _section(story, "redo")["uuid"] == forged.UUID


def test_a_damaged_header_without_a_redo_image_is_an_alarm(image: Path) -> None:
    torn = bytearray(header_image())
    torn[300:400] = bytes(range(100))
    torn[forged.METADATA_BYTES + 300 : forged.METADATA_BYTES + 400] = bytes(range(100))
    story = inspect_image(write_image(image, image=bytes(torn)))
    assert any("damaged" in alarm for alarm in story.alarms)
    assert "docs/recovery.md" in story.conclusion


def test_other_files_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "missing", tmp_path / "pipe"):
        with pytest.raises(click.ClickException):
            inspect_image(path)


def test_any_bytes_get_an_answer(image: Path) -> None:
    rng = random.Random(6)
    for length in (0, 1, 511, 4096, 5000, 4 * MIB, 5 * MIB):
        image.write_bytes(rng.randbytes(length))
        story = inspect_image(image)
        assert story.conclusion
        assert story.alarms


# --- the command ------------------------------------------------------------------------------------------


def test_the_command_prints_the_proof_for_people_and_programs(image: Path) -> None:
    write_image(image)
    table = CliRunner().invoke(main, ["inspect", str(image)])
    assert table.exit_code == 0, table.output
    assert "Encrypted, as far as a disk can show it" in table.output
    assert f"size, bytes  {SIZE} ({SIZE // MIB} MiB)" in table.output
    document = json.loads(CliRunner().invoke(main, ["inspect", str(image), "--output=json"]).stdout)
    assert document["kind"] == "image"
    assert document["sections"][0]["size, bytes"] == SIZE
    assert {one["name"] for one in document["rules"] if one["verdict"] == "broken"} == set()
    assert document["alarms"] == []


def test_exit_codes_tell_remarks_from_alarms(image: Path) -> None:
    write_image(image, records={})
    assert CliRunner().invoke(main, ["inspect", str(image)]).exit_code == EXIT_REMARKS
    write_image(image, size=SIZE - MIB)
    assert CliRunner().invoke(main, ["inspect", str(image)]).exit_code == EXIT_ALARMS
    assert CliRunner().invoke(main, ["inspect", str(image.with_name("missing"))]).exit_code == 2


def test_a_hostile_disk_does_not_steer_the_terminal(image: Path) -> None:
    escape = "\x1b[2J\x07"
    area = forged.with_field(forged.build_area(), forged.LABEL_FIELD, escape.encode())
    area = forged.with_field(area, forged.UUID_FIELD, escape.encode().ljust(40, b"\0"))
    record = replace(READY, luks_uuid=escape)
    write_image(image, image=header_image(area), records={0: record})
    printed = CliRunner().invoke(main, ["inspect", str(image)]).output
    assert "\x1b" not in printed
    assert "\x07" not in printed
    assert "\\x1b[2J" in printed
