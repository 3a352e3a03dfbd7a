"""Corrupted headers under stable names: values of members, the text, the binary header, the copies."""

import copy
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tests.differential.cryptsetup import DEVICE_BYTES
from tests.fakes import luks_headers as forged

COPY = forged.METADATA_BYTES
JSON_BYTES = COPY - forged.BINARY_BYTES


@dataclass(frozen=True)
class Case:
    """``area`` is how a device of ``device_bytes`` begins; the rest of it is zero."""

    name: str
    area: bytes
    device_bytes: int = DEVICE_BYTES


def rich_document() -> forged.Metadata:
    """Metadata that uses what the profile forbids: tokens, integrity, flags, priority, an unbound keyslot."""
    document = forged.metadata(3)
    document["keyslots"]["1"]["kdf"] = {
        "type": "argon2id",
        "time": 4,
        "memory": 32,
        "cpus": 1,
        "salt": forged.encoded("argon2"),
    }
    document["keyslots"]["1"]["priority"] = 2
    document["segments"]["0"]["integrity"] = {
        "type": "hmac(sha256)",
        "journal_encryption": "none",
        "journal_integrity": "none",
    }
    document["segments"]["0"]["flags"] = ["of-others"]
    document["tokens"]["0"] = {"type": "of-others", "keyslots": ["0"], "more": [1, 2.5, None, False]}
    document["digests"]["0"]["keyslots"] = ["0", "1"]
    document["digests"]["1"] = {**document["digests"]["0"], "keyslots": ["2"], "segments": []}
    document["config"]["flags"] = ["allow-discards"]
    document["config"]["requirements"] = {"mandatory": ["of-others"]}
    return document


def reencrypting_document() -> forged.Metadata:
    """Metadata in the middle of a re-encryption."""
    document = forged.metadata(1)
    segment = document["segments"].pop("0")
    segment["sector_size"] = 512
    document["segments"] = {
        "0": {**segment, "size": "1048576", "flags": ["in-reencryption"]},
        "1": {**segment, "offset": "5242880", "iv_tweak": "2048"},
        "2": {**segment, "flags": ["backup-previous"], "encryption": "aes-cbc-essiv:sha256"},
        "3": {**segment, "flags": ["backup-final"]},
    }
    document["keyslots"]["1"] = {
        "type": "reencrypt",
        "key_size": 1,
        "mode": "reencrypt",
        "direction": "forward",
        "priority": 0,
        "area": {
            "type": "checksum",
            "offset": str(32768 + 258048),
            "size": "65536",
            "hash": "sha256",
            "sector_size": 512,
            "shift_size": "1048576",
        },
    }
    document["digests"]["0"]["segments"] = ["0", "1", "2", "3"]
    document["config"]["requirements"] = {"mandatory": ["online-reencrypt-v2"]}
    return document


BASES: dict[str, Callable[[], forged.Metadata]] = {
    "format-1": forged.metadata,
    "rich": rich_document,
    "reencrypting": reencrypting_document,
}

VALUES: tuple[Any, ...] = (
    None, True, 0, 1, -1, 513, 4096, 2**32, 2**63, 1.5,
    "", "0", "1", "00", " 1", "-1", "0x10", "512", "32768", "258048", "4194304",
    "18446744073709547520", "18446744073709551616", "dynamic", "linear", "luks2", "reencrypt",
    "argon2id", "datashift", "datashift-checksum", "online-reencrypt-v2", "backup-final", "cipher_null-ecb",
    [], ["0"], ["1"], ["0", "0"], ["00"], [0], ["backup-final"], ["online-reencrypt", "online-reencrypt-v5"],
    {}, {"mandatory": [1]},
)  # fmt: skip


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield (*path, key)
            yield from _places(value[key], (*path, key))


def _at(document: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        document = document[key]
    return document


def _dotted(path: tuple[Any, ...]) -> str:
    return ".".join(map(str, path))


def edited_json() -> Iterator[Case]:
    """Each member replaced by each value, removed, renamed to a number, copied to the next number."""
    for base, make in BASES.items():
        original = make()
        yield Case(base, forged.build_area(original))
        for path in _places(original):
            holder_path, key = path[:-1], path[-1]
            for value in VALUES:
                document = copy.deepcopy(original)
                _at(document, holder_path)[key] = copy.deepcopy(value)
                yield Case(f"{base}: {_dotted(path)} = {json.dumps(value)}", forged.build_area(document))
            document = copy.deepcopy(original)
            if isinstance(key, str):
                _at(document, holder_path)["9"] = copy.deepcopy(_at(document, path))
                yield Case(f"{base}: {_dotted(path)} also '9'", forged.build_area(document))
            document = copy.deepcopy(original)
            del _at(document, holder_path)[key]
            yield Case(f"{base}: no {_dotted(path)}", forged.build_area(document))
            if isinstance(key, str):
                for other in ("1", "9", "00", "x", ""):
                    document = copy.deepcopy(original)
                    holder = _at(document, holder_path)
                    if other == key:
                        continue
                    holder[other] = holder.pop(key)
                    yield Case(f"{base}: {_dotted(path)} as {other!r}", forged.build_area(document))


def edited_text() -> Iterator[Case]:
    """The JSON area as text."""
    text = forged.json_text(forged.metadata())
    depth = {
        f"{kind} nested {levels}": text.replace(
            b'"tokens":{}', b'"tokens":{},"x":' + opening * levels + closing * levels
        )
        for kind, opening, closing in (("arrays", b"[", b"]"), ("objects", b'{"a":', b"}"))
        for levels in (28, 29, 30, 31, 32, 33, 100, 1500)
        if closing == b"]" or levels < 1500
    }
    depth |= {
        f"value at depth {levels}": text.replace(
            b'"tokens":{}', b'"tokens":{},"x":' + b"[" * levels + b"1" + b"]" * levels
        )
        for levels in (29, 30, 31, 32)
    }
    changes = {
        **depth,
        "empty": b"",
        "only a brace": b"{",
        "an array": b"[]",
        "a blank in front": b" " + text,
        "a blank behind": text + b" ",
        "a newline behind": text + b"\n",
        "a vertical tab behind": text + b"\v",
        "blanks inside": text.replace(b",", b" ,\n\t\r "),
        "an object behind": text + b"{}",
        "a byte after the end": text + b"\0" * 100 + b"x",
        "a byte at the very end": text.ljust(JSON_BYTES - 1, b"\0") + b"x",
        "no NUL at the end": text.ljust(JSON_BYTES, b" "),
        "one NUL at the end": text.ljust(JSON_BYTES - 1, b" "),
        "a NUL inside": text[:50] + b"\0" + text[50:],
        "a byte order mark": b"\xef\xbb\xbf" + text,
        "a comment": text.replace(b"{}", b"/* none */{}"),
        "a line comment": text.replace(b"{}", b"// none\n{}"),
        "single quotes": text.replace(b'"', b"'"),
        "a trailing comma in an object": text.replace(b'"tokens":{}', b'"tokens":{},"x":{"a":1,}'),
        "a trailing comma in an array": text.replace(b'["0"]', b'["0",]'),
        "NaN": text.replace(b'"tokens":{}', b'"tokens":{},"x":NaN'),
        "infinity": text.replace(b'"tokens":{}', b'"tokens":{},"x":-Infinity'),
        "a capital True": text.replace(b'"tokens":{}', b'"tokens":{},"x":True'),
        "a leading zero": text.replace(b":4096", b":04096"),
        "a plus sign": text.replace(b":4096", b":+4096"),
        "a negative zero": text.replace(b'"tokens":{}', b'"tokens":{},"x":-0'),
        "a lonely minus": text.replace(b":4096", b":-"),
        "a point without digits": text.replace(b'"tokens":{}', b'"tokens":{},"x":1.'),
        "an exponent": text.replace(b'"tokens":{}', b'"tokens":{},"x":1E+2'),
        "an exponent without digits": text.replace(b'"tokens":{}', b'"tokens":{},"x":1e'),
        "a huge exponent": text.replace(b'"tokens":{}', b'"tokens":{},"x":1e999'),
        "a float for an integer": text.replace(b":4096", b":4096.0"),
        "an exponent for an integer": text.replace(b":4096", b":4e3"),
        "a huge integer": text.replace(b'"tokens":{}', b'"tokens":{},"x":' + b"9" * 30),
        "a very huge integer": text.replace(b'"tokens":{}', b'"tokens":{},"x":' + b"9" * 5000),
        "a repeated member": text.replace(b'"size":"dynamic"', b'"size":"512","size":"dynamic"'),
        "a repeated member, bad last": text.replace(b'"size":"dynamic"', b'"size":"dynamic","size":"x"'),
        "a blank in json_size": text.replace(b'"12288"', b'" 12288"'),
        "a plus sign in keyslots_size": text.replace(b'"1048576"', b'"+1048576"'),
        "a negative keyslots_size": text.replace(b'"1048576"', b'"-18446744073708503040"'),
        "an escaped letter": text.replace(b"crypt", b"\\u0063rypt"),
        "an escaped slash": text.replace(b'"tokens":{}', b'"tokens":{},"x":"a\\/b"'),
        "an unknown escape": text.replace(b"crypt", b"\\crypt"),
        "an escaped NUL in a value": text.replace(b'"crypt"', b'"crypt\\u0000"'),
        "an escaped NUL in a name": text.replace(b'"tokens":{}', b'"tokens":{},"x\\u0000y":1'),
        "a surrogate pair": text.replace(b'"tokens":{}', b'"tokens":{},"x":"\\ud83d\\ude00"'),
        "half a surrogate pair": text.replace(b'"tokens":{}', b'"tokens":{},"x":"\\ud83d"'),
        "a control character": text.replace(b'"tokens":{}', b'"tokens":{},"x":"\x01"'),
        "a tab in a string": text.replace(b'"tokens":{}', b'"tokens":{},"x":"\t"'),
        "UTF-8": text.replace(b'"tokens":{}', '"tokens":{},"x":"é"'.encode()),
        "bytes that are not UTF-8": text.replace(b'"tokens":{}', b'"tokens":{},"x":"\xff"'),
        "a name without quotes": text.replace(b'"tokens"', b"tokens"),
        "no colon": text.replace(b'"tokens":', b'"tokens" '),
        "two commas": text.replace(b",", b",,", 1),
        "not closed": text[:-1],
        "one brace too many": text + b"}",
        "more values than bounded work allows": text.replace(
            b'"tokens":{}', b'"tokens":{},"x":[' + b"0," * 5000 + b"0]"
        ),
    }  # fmt: skip
    for name, changed in changes.items():
        yield Case(f"text: {name}", forged.build_area(changed))
    size = 128 * 1024
    document = forged.metadata()
    document["config"]["json_size"] = str(size - 4096)
    document["keyslots"]["0"]["area"]["offset"] = str(2 * size)
    for count in (10_000, 25_000):
        large = forged.json_text({**document, "x": [0] * count})
        yield Case(f"text: {count} values", forged.build_area(large, size=size))


def edited_binary() -> Iterator[Case]:
    """Fields of the binary header, in both copies."""
    area = forged.build_area()
    for name, field, value in (
        ("version 1", 6, b"\0\1"),
        ("version 3", 6, b"\0\3"),
        ("size 0", forged.SIZE_FIELD, bytes(8)),
        ("size 8 KiB", forged.SIZE_FIELD, (8192).to_bytes(8, "big")),
        ("size 20 KiB", forged.SIZE_FIELD, (20480).to_bytes(8, "big")),
        ("size 32 KiB", forged.SIZE_FIELD, (32768).to_bytes(8, "big")),
        ("size huge", forged.SIZE_FIELD, b"\xff" * 8),
        ("sequence 0", forged.SEQUENCE_FIELD, bytes(8)),
        ("sequence huge", forged.SEQUENCE_FIELD, b"\xff" * 8),
        ("label full", forged.LABEL_FIELD, b"L" * 48),
        ("label of noise", forged.LABEL_FIELD, b"\xff" * 48),
        ("uuid of noise", forged.UUID_FIELD, b"\xff" * 40),
        ("uuid empty", forged.UUID_FIELD, bytes(40)),
        ("no checksum algorithm", forged.CHECKSUM_ALGORITHM_FIELD, bytes(32)),
        ("unknown checksum algorithm", forged.CHECKSUM_ALGORITHM_FIELD, b"sha257"),
        ("capital checksum algorithm", forged.CHECKSUM_ALGORITHM_FIELD, b"SHA256"),
        ("hyphenated checksum algorithm", forged.CHECKSUM_ALGORITHM_FIELD, b"SHA2-256"),
        ("noise after the checksum algorithm", forged.CHECKSUM_ALGORITHM_FIELD + 7, b"noise"),
        ("offset 512", forged.OFFSET_FIELD, (512).to_bytes(8, "big")),
        ("padding", 300, b"x"),
        ("padding at the end", 4095, b"x"),
    ):
        yield Case(f"binary: {name}", forged.with_field(area, field, value))
    for checksum in ("sha1", "sha224", "sha384", "sha512", "md5", "sha3_256", "blake2b"):
        yield Case(f"binary: checksum {checksum}", forged.build_area(checksum=checksum))
    for size in (32768, 24576, 16384 + 512, 4 * 1024 * 1024, 8 * 1024 * 1024):
        document = forged.metadata()
        document["config"]["json_size"] = str(size - 4096)
        document["keyslots"]["0"]["area"]["offset"] = str(2 * size)
        document["segments"]["0"]["offset"] = str(16 * 1024 * 1024)
        yield Case(f"binary: metadata of {size}", forged.build_area(document, size=size))
    for size in (32768, 65536, 1081343, 1081344, 1081856):
        yield Case(f"binary: a device of {size}", area, size)
    for position in (
        0,
        5,
        6,
        8,
        16,
        24,
        72,
        104,
        168,
        208,
        256,
        264,
        447,
        448,
        479,
        480,
        511,
        512,
        4095,
        4096,
        9000,
    ):
        flipped = bytearray(area)
        flipped[position] ^= 0x40
        flipped[COPY + position] ^= 0x40
        yield Case(f"binary: byte {position} flipped in both copies", bytes(flipped))


def mixed_copies() -> Iterator[Case]:
    """Copies that are missing, broken, older, or say different things."""
    one, two = forged.metadata(1), forged.metadata(2)
    primary, secondary = forged.build_copy(one), forged.build_copy(one, secondary=True)
    bad_json, bad_secondary = forged.build_copy(b"{}"), forged.build_copy(b"{}", secondary=True)
    wide = forged.build_copy(b"{}", size=32768)
    far_document = forged.metadata()
    far_document["config"]["json_size"] = str(65536 - 4096)
    far_document["keyslots"]["0"]["area"]["offset"] = str(2 * 65536)
    far = forged.build_copy(far_document, secondary=True, size=65536)
    newer = forged.build_copy(two, secondary=True, sequence=9)
    blank = bytes(COPY)
    for name, area in (
        ("blank", blank * 2),
        ("primary only", primary + blank),
        ("secondary only", blank + secondary),
        ("primary twice", primary + primary),
        ("secondary twice", secondary + secondary),
        ("swapped", secondary + primary),
        ("primary binary header zeroed", bytes(4096) + (primary + secondary)[4096:]),
        ("both binary headers zeroed", bytes(4096) + primary[4096:] + bytes(4096) + secondary[4096:]),
        ("primary with bad JSON", bad_json + secondary),
        ("secondary with bad JSON", primary + bad_secondary),
        ("both with bad JSON", bad_json + bad_secondary),
        ("secondary at 64 KiB", bytes(65536) + far),
        ("secondary at 64 KiB, primary with bad JSON", bad_json + bytes(65536 - COPY) + far),
        ("wide primary with bad JSON over a good secondary", wide[:COPY] + secondary + blank),
        ("wide primary with bad JSON", wide + blank),
        ("two secondaries, first with bad JSON", blank + bad_secondary + bytes(32768) + far),
        ("newer primary", forged.build_copy(two, sequence=9) + secondary),
        ("newer secondary", primary + newer),
        ("equally old but different", primary + forged.build_copy(two, secondary=True)),
        ("newer primary with bad JSON", forged.build_copy(b"{}", sequence=9) + secondary),
        ("newer secondary with bad JSON", primary + forged.build_copy(b"{}", secondary=True, sequence=9)),
        ("newer secondary with a bad checksum", primary + newer[:9000] + b"x" + newer[9001:]),
        ("primary of version 0", primary[:6] + b"\0\0" + primary[8:] + secondary),
        ("primary of version 1", primary[:6] + b"\0\1" + primary[8:] + secondary),
        ("primary of version 3", primary[:6] + b"\0\3" + primary[8:] + secondary),
        ("LUKS1", b"LUKS\xba\xbe\0\1" + bytes(COPY * 2 - 8)),
    ):  # fmt: skip
        yield Case(f"copies: {name}", area)
    ext = bytearray(blank + secondary)
    ext[0x438:0x43A] = b"\x53\xef"
    yield Case("copies: secondary only, and half an ext4", bytes(ext))


def all_cases() -> Iterator[Case]:
    yield from edited_json()
    yield from edited_text()
    yield from edited_binary()
    yield from mixed_copies()
