"""Headers that cryptsetup made, with varied options: how each is made."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.differential.cryptsetup import run

KEY = bytes(range(1, 65))
OTHER_KEY = bytes(range(101, 165))
PBKDF2 = ("--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000")
ARGON2 = ("--pbkdf-memory", "32", "--pbkdf-force-iterations", "4", "--pbkdf-parallel", "1")
FORMAT_1 = (
    "--cipher=aes-xts-plain64",
    "--key-size=512",
    "--sector-size=4096",
    "--luks2-metadata-size=16k",
    "--luks2-keyslots-size=1m",
    "--offset=8192",
    "--hash=sha256",
)
DEVICE_BYTES = 160 * 1024 * 1024


def luks_format(image: Path, *options: str, kdf: tuple[str, ...] = PBKDF2) -> Path:
    """Make a LUKS2 volume that KEY opens, in a fresh sparse file."""
    with image.open("wb") as file:
        file.truncate(DEVICE_BYTES)
    run("luksFormat", "--type=luks2", *kdf, *options, "--key-file=-", image, key=KEY)
    return image


@dataclass(frozen=True)
class Recipe:
    """``make`` writes a volume to the given path. ``in_format_1`` and ``foreign``: which profiles hold."""

    name: str
    make: Callable[[Path], object]
    in_format_1: bool = False
    foreign: bool = True


def _formatted(*options: str, kdf: tuple[str, ...] = PBKDF2) -> Callable[[Path], object]:
    return lambda image: luks_format(image, *options, kdf=kdf)


def _then(*commands: tuple[str, ...], options: tuple[str, ...] = FORMAT_1) -> Callable[[Path], object]:
    """Format, then run each cryptsetup command with the image as the last argument."""

    def make(image: Path) -> None:
        luks_format(image, *options)
        other = image.with_suffix(".key")
        other.write_bytes(OTHER_KEY)
        for command in commands:
            words = [str(other) if word == "OTHER" else word for word in command]
            trailing = [words.pop()] if command[-1] == "OTHER" else []
            run(*words, image, *trailing, key=KEY)

    return make


def _with_token(image: Path) -> None:
    luks_format(image, *FORMAT_1)
    run("token", "add", "--token-id=3", "--key-description=some:key", image)
    token = {"type": "of-others", "keyslots": ["0"], "more": [1, 2.5, None, {"deep": {"er": "\u00e9/"}}]}
    run("token", "import", "--token-id=7", image, key=json.dumps(token).encode())


def _detached(image: Path) -> None:
    data = image.with_suffix(".data")
    luks_format(data)
    data.unlink()
    with data.open("wb") as file:
        file.truncate(DEVICE_BYTES)
    with image.open("wb") as file:
        file.truncate(32 * 1024 * 1024)
    run("luksFormat", "--type=luks2", *PBKDF2, "--header", image, "--key-file=-", data, key=KEY)


def _decrypting(image: Path) -> None:
    _detached(image)
    run(
        "reencrypt",
        "--decrypt",
        "--init-only",
        "--force-offline-reencrypt",
        "--header",
        image,
        "--key-file=-",
        image.with_suffix(".data"),
        key=KEY,
    )


def _encrypting(image: Path) -> None:
    with image.open("wb") as file:
        file.truncate(DEVICE_BYTES)
    run(
        "reencrypt",
        "--encrypt",
        "--init-only",
        "--type=luks2",
        "--reduce-device-size=32M",
        *PBKDF2,
        "--key-file=-",
        image,
        key=KEY,
    )


def _from_luks1(image: Path) -> None:
    with image.open("wb") as file:
        file.truncate(DEVICE_BYTES)
    run("luksFormat", "--type=luks1", "--pbkdf-force-iterations=1000", "--key-file=-", image, key=KEY)
    run("convert", "--type=luks2", image)


def _with_newer_secondary(image: Path) -> None:
    luks_format(image, *FORMAT_1)
    copy = image.with_suffix(".copy")
    shutil.copy(image, copy)
    run("config", "--label=newer", copy)
    with image.open("r+b") as file, copy.open("rb") as newer:
        newer.seek(16384)
        file.seek(16384)
        file.write(newer.read(16384))


_ADD_KEY = ("luksAddKey", *PBKDF2, "--key-file=-", "OTHER")
_REENCRYPT = ("reencrypt", "--init-only", *PBKDF2, "--key-file=-")

RECIPES: tuple[Recipe, ...] = (
    Recipe("format-1", _formatted(*FORMAT_1), in_format_1=True),
    Recipe("format-1-two-keyslots", _then(_ADD_KEY), in_format_1=True),
    Recipe(
        "format-1-changed-key", _then(("luksChangeKey", *PBKDF2, "--key-file=-", "OTHER")), in_format_1=True
    ),
    Recipe(
        "format-1-labeled", _formatted(*FORMAT_1, "--label=a label", "--subsystem=tests"), in_format_1=True
    ),
    Recipe(
        "format-1-uuid", _then(("luksUUID", "--uuid=12345678-1234-1234-1234-123456789abc")), in_format_1=True
    ),
    Recipe("newer-secondary", _with_newer_secondary, in_format_1=True),
    Recipe("defaults", _formatted()),
    Recipe("argon2id", _formatted(kdf=("--pbkdf=argon2id", *ARGON2))),
    Recipe("argon2i", _formatted(kdf=("--pbkdf=argon2i", *ARGON2))),
    Recipe("converted-key", _then(("luksConvertKey", "--pbkdf=argon2id", *ARGON2, "--key-file=-"))),
    Recipe("sha512", _formatted("--hash=sha512")),
    Recipe("whirlpool", _formatted("--hash=whirlpool"), foreign=False),
    Recipe("aes-128-xts", _formatted("--key-size=256")),
    Recipe("small-keyslot-key", _formatted("--keyslot-key-size=256", "--keyslot-cipher=aes-xts-plain64")),
    Recipe(
        "keyslot-cbc",
        _formatted("--keyslot-key-size=256", "--keyslot-cipher=aes-cbc-essiv:sha256"),
        foreign=False,
    ),
    Recipe("aes-cbc", _formatted("--cipher=aes-cbc-essiv:sha256", "--key-size=256"), foreign=False),
    *(Recipe(f"sector-{size}", _formatted(f"--sector-size={size}")) for size in (512, 1024, 2048, 4096)),
    *(
        Recipe(f"metadata-{size}", _formatted(f"--luks2-metadata-size={size}"))
        for size in ("16k", "32k", "64k", "128k", "256k", "512k", "1m", "2m", "4m")
    ),
    Recipe("keyslots-256k", _formatted("--luks2-keyslots-size=256k")),
    Recipe("keyslots-512k", _formatted("--luks2-keyslots-size=512k")),
    Recipe("keyslots-128m", _formatted("--luks2-keyslots-size=128m", "--offset=270336"), foreign=False),
    Recipe("offset-8m", _formatted("--offset=16384")),
    Recipe("offset-80m", _formatted("--offset=163840"), foreign=False),
    # Its digest has the 20 bytes of LUKS1, whatever the hash.
    Recipe("from-luks1", _from_luks1, foreign=False),
    Recipe("detached", _detached, foreign=False),
    Recipe("priority-prefer", _then(("config", "--priority=prefer", "--key-slot=0"))),
    Recipe("priority-ignore", _then(("config", "--priority=ignore", "--key-slot=0"))),
    Recipe("keyslot-31", _formatted("--key-slot=31")),
    Recipe("tokens", _with_token, foreign=False),
    Recipe(
        "unbound",
        _then(("luksAddKey", "--unbound", "--key-size=256", *PBKDF2, "--key-file=-")),
        foreign=False,
    ),
    Recipe("erased", _then(("luksErase",)), foreign=False),
    *(
        Recipe(
            f"reencrypt-{kind}",
            _then((*_REENCRYPT, f"--resilience={kind}"), options=("--sector-size=512",)),
            foreign=False,
        )
        for kind in ("checksum", "journal", "none")
    ),
    Recipe("encrypting", _encrypting, foreign=False),
    Recipe("decrypting", _decrypting, foreign=False),
)
