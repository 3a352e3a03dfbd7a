"""What a hostile or damaged header does to cryptsetup, and what it does to us."""

import base64
import ctypes
import hashlib
from pathlib import Path

import pytest

from agent.classification import Kind, classify
from agent.luks2 import Header, HeaderError, newest_valid, parse_pair
from agent.luks2_profile import FOREIGN, FORMAT_1, ProfileViolation, audit, require_equal_copies
from tests.differential.cryptsetup import run
from tests.differential.made_headers import FORMAT_1 as FORMAT_1_OPTIONS
from tests.differential.made_headers import KEY, OTHER_KEY, luks_format
from tests.fakes import luks_headers as forged

AREA_BYTES = 4 * 1024 * 1024
ATTACKERS_KEY = bytes(range(64))


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    return luks_format(tmp_path / "volume", *FORMAT_1_OPTIONS)


def read_area(image: Path) -> bytes:
    with image.open("rb") as device:
        return device.read(AREA_BYTES)


def overwrite(image: Path, offset: int, data: bytes) -> None:
    with image.open("r+b") as device:
        device.seek(offset)
        device.write(data)


def opens(image: Path, key: bytes) -> bool:
    opened = run("open", "--test-passphrase", "--key-file=-", image, key=key, check=False)
    return opened.returncode == 0


def accepts_volume_key(image: Path, volume_key: bytes) -> bool:
    file = image.with_name("volume-key")
    file.write_bytes(volume_key)
    opened = run("open", "--test-passphrase", "--volume-key-file", file, image, check=False)
    return opened.returncode == 0


def aes_xts(key: bytes, data: bytes) -> bytes:
    """aes-xts-plain64 over 512-byte sectors, by the OpenSSL library that cryptsetup itself links."""
    crypto = ctypes.CDLL("libcrypto.so.3")
    crypto.EVP_CIPHER_CTX_new.restype = ctypes.c_void_p
    crypto.EVP_aes_256_xts.restype = ctypes.c_void_p
    context, cipher = ctypes.c_void_p(crypto.EVP_CIPHER_CTX_new()), ctypes.c_void_p(crypto.EVP_aes_256_xts())
    sector, length = ctypes.create_string_buffer(512), ctypes.c_int()
    encrypted = b""
    for number in range(len(data) // 512):
        tweak = number.to_bytes(16, "little")
        assert crypto.EVP_EncryptInit_ex(context, cipher, None, key, tweak) == 1
        plain = data[512 * number : 512 * (number + 1)]
        assert crypto.EVP_EncryptUpdate(context, sector, ctypes.byref(length), plain, 512) == 1
        encrypted += sector.raw
    crypto.EVP_CIPHER_CTX_free(context)
    return encrypted


def refused_rule(image: Path) -> str:
    header = newest_valid(read_area(image))
    rules = set()
    for profile in (FORMAT_1, FOREIGN):
        with pytest.raises(ProfileViolation) as caught:
            audit(header, profile)
        rules.add(caught.value.rule)
    (rule,) = rules
    return rule


def test_a_null_segment_opens_with_the_genuine_key_and_is_refused_here(volume: Path) -> None:
    """Field case I4: isLuks is content and the right key opens it; everything written would be plaintext."""
    assert audit(newest_valid(read_area(volume)), FORMAT_1)
    forged.forge_file(volume, forged.null_segment)
    assert run("isLuks", volume, check=False).returncode == 0
    assert opens(volume, KEY)
    assert refused_rule(volume) == "header-segment-cipher"


def test_a_header_around_a_volume_key_of_the_attacker_is_refused_here(volume: Path) -> None:
    """Field case I4: the keyslot is not encrypted, so any key would do.

    cryptsetup takes the header and the volume key as genuine. (That any key opens it shows only where the
    kernel has the null cipher: the guest tests.)
    """
    overwrite(volume, 0, forged.known_key_image(ATTACKERS_KEY, read_area(volume)))
    require_equal_copies(read_area(volume))
    assert run("isLuks", volume, check=False).returncode == 0
    assert accepts_volume_key(volume, ATTACKERS_KEY)
    assert not accepts_volume_key(volume, bytes(64))
    assert refused_rule(volume) == "header-keyslot-cipher"


def test_the_forged_key_material_is_what_cryptsetup_merges(volume: Path) -> None:
    """The same material, encrypted, gives the attacker's volume key: the forgery above is a real one."""
    image = bytearray(forged.known_key_image(ATTACKERS_KEY, read_area(volume)))
    document = forged.read_metadata(bytes(image))
    slot = document["keyslots"]["0"]
    slot["area"]["encryption"] = "aes-xts-plain64"
    start = int(slot["area"]["offset"])
    salt = base64.b64decode(slot["kdf"]["salt"])
    slot_key = hashlib.pbkdf2_hmac("sha256", OTHER_KEY, salt, slot["kdf"]["iterations"], 64)
    material = aes_xts(slot_key, bytes(image[start : start + 64 * 4000]))
    overwrite(volume, 0, forged.with_json(bytes(image[:start]), document) + material)
    assert opens(volume, OTHER_KEY)
    assert not opens(volume, KEY)
    assert audit(newest_valid(read_area(volume)), FORMAT_1)


def test_a_genuine_keyslot_made_null_does_not_open_and_is_refused_here(volume: Path) -> None:
    """Field case I4."""
    forged.forge_file(volume, forged.null_keyslots)
    assert run("isLuks", volume, check=False).returncode == 0
    assert not opens(volume, KEY)
    assert refused_rule(volume) == "header-keyslot-cipher"


def test_a_well_behaved_header_around_another_volume_key_passes_the_profile(volume: Path) -> None:
    """What no profile can see, and why the header must also authenticate."""
    foreign = luks_format(volume.with_name("foreign"), *FORMAT_1_OPTIONS)
    overwrite(volume, 0, read_area(foreign))
    assert audit(newest_valid(read_area(volume)), FORMAT_1)


@pytest.mark.parametrize("command", [("isLuks",), ("luksDump",)])
def test_cryptsetup_rewrites_a_damaged_primary_header_and_the_parser_only_reads(
    volume: Path, command: tuple[str, ...]
) -> None:
    """Field case I2: the secondary magic proves a LUKS2 disk; "reading" commands repair, so copy first."""
    overwrite(volume, 0, bytes(4096))
    damaged = read_area(volume)
    assert damaged[0x4000:0x4008] == bytes.fromhex("534b554cbabe0002")
    before = hashlib.sha256(damaged).digest()
    volume.chmod(0o400)
    assert classify(read_area(volume), volume.stat().st_size).kind is Kind.DAMAGED_LUKS
    pair = parse_pair(read_area(volume))
    assert isinstance(pair.primary, HeaderError)
    assert isinstance(pair.secondary, Header)
    assert hashlib.sha256(read_area(volume)).digest() == before

    volume.chmod(0o600)
    run(*command, volume)
    repaired = read_area(volume)
    assert hashlib.sha256(repaired).digest() != before
    assert repaired.startswith(b"LUKS\xba\xbe\0\2")


def test_a_disk_with_both_binary_headers_zeroed_is_still_not_empty(volume: Path) -> None:
    """Field case I2."""
    overwrite(volume, 0, bytes(4096))
    overwrite(volume, 16384, bytes(4096))
    found = classify(read_area(volume), volume.stat().st_size)
    assert found.kind is Kind.OTHER_DATA
    assert "from byte 4096" in found.detail
    assert run("isLuks", volume, check=False).returncode == 1


def test_a_detached_header_leaves_the_disk_looking_blank(tmp_path: Path) -> None:
    """Field case I1: so "no magic" can't mean "new"; the agent never makes such a volume."""
    disk, header = tmp_path / "disk", tmp_path / "header"
    for path, size in ((disk, 64 * 1024 * 1024), (header, 16 * 1024 * 1024)):
        with path.open("wb") as file:
            file.truncate(size)
    options = ("--pbkdf=pbkdf2", "--pbkdf-force-iterations=1000", "--key-file=-")
    run("luksFormat", "--type=luks2", "--header", header, *options, disk, key=KEY)
    assert run("isLuks", disk, check=False).returncode == 1
    assert classify(read_area(disk), disk.stat().st_size).kind is Kind.BLANK
    with pytest.raises(ProfileViolation, match="data begins at 0"):
        audit(newest_valid(read_area(header)), FOREIGN)
