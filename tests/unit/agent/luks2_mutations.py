"""Mutations of a header of on-disk format 1: bits, fields, JSON, each with a verdict of its own.

A mutator returns the mutated bytes and whether they still keep to on-disk format 1, which it knows by
construction or asks :mod:`tests.unit.agent.luks2_oracle`. Checksums are recomputed wherever an attacker
would recompute them.
"""

import copy
import random
from collections.abc import Callable
from typing import Any

from tests.fakes import luks_headers as forged
from tests.unit.agent.luks2_oracle import in_format_1, text_in_format_1

Mutation = tuple[bytes, bool]
Mutator = Callable[[bytes, random.Random], Mutation]

COPY = forged.METADATA_BYTES
JSON_BYTES = COPY - forged.BINARY_BYTES

HOSTILE: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 7, 31, 32, 63, 64, 65, 511, 512, 999, 1000, 1001, 4000, 4095,
    4096, 8192,
    100_000, 100_001, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53, 2**63 - 1, 2**63, 2**64 - 1,
    2**64, -(2**63),
    10**30, 0.0, 1.5, 1e308, 64.0, 4096.0,
    "", "0", "00", "1", "-1", "+1", " 1", "1 ", "1.0", "0x10", "1e3", "1_000", "\u0664\u0660\u0669\u0666",
    "\u0661",
    "dynamic", "Dynamic",
    "511", "512", "4096", "32768", "32767", "36864", "253952", "258048", "262144", "290816",
    "806912", "1048576",
    "1081344", "4194304", "4194305", "4198400", "8388608", "9223372036854775808",
    "18446744073709551615",
    "18446744073709551616", "9" * 400,
    "crypt", "linear", "luks2", "luks1", "raw", "pbkdf2", "argon2id", "argon2i", "scrypt",
    "reencrypt", "none",
    "sha256", "sha1", "sha512", "SHA256", "sha256\0", "aes-xts-plain64", "AES-XTS-PLAIN64",
    "aes-xts-plain64 ",
    "aes-xts-plain64\0", "cipher_null-ecb", "cipher_null", "null", "aes-cbc-essiv:sha256", "aes-ecb",
    "capi:authenc(hmac(sha256),xts(aes))-plain64", "\ud800", "\u0000", "é", "A" * 43 + "=",
    "A" * 44, "A" * 42 + "B=",
    "====", "a" * 3000,
    [], ["0"], ["1"], ["0", "0"], ["0", "1"], [0], [[]], [None], {}, {"0": {}},
    {"mandatory": ["online-reencrypt"]},
    {"type": "crypt"}, {"type": "pbkdf2", "hash": "sha256", "iterations": 1, "salt": "AAAA"},
    {"type": "argon2id", "time": 4, "memory": 2**31, "cpus": 4, "salt": forged.encoded("x")},
)  # fmt: skip
NAMES = (
    "0", "1", "2", "01", "-1", "", "32", "type", "key_size", "af", "area", "kdf", "priority",
    "flags", "requirements",
    "integrity", "encryption", "offset", "size", "sector_size", "iv_tweak", "hash", "salt",
    "iterations", "stripes",
    "keyslots", "segments", "digests", "tokens", "config", "json_size", "é", "\0", "x" * 500,
)  # fmt: skip


def _containers(document: forged.Metadata) -> list[Any]:
    found: list[Any] = []
    pending: list[Any] = [document]
    while pending:
        value = pending.pop()
        if isinstance(value, dict | list):
            found.append(value)
            pending.extend(value.values() if isinstance(value, dict) else value)
    return found


def _keys(container: Any) -> list[Any]:
    return list(container) if isinstance(container, dict) else list(range(len(container)))


def _sealed(area: bytes, document: forged.Metadata) -> Mutation:
    if len(forged.json_text(document)) > JSON_BYTES:
        return forged.with_json(area, b"{" + b" " * (JSON_BYTES - 1)), False
    return forged.with_json(area, document), in_format_1(document)


def flip_bits(area: bytes, rng: random.Random) -> Mutation:
    """A few bits anywhere, checksums left alone. Both copies are wanted equal and whole."""
    changed = bytearray(area)
    for _ in range(rng.choice((1, 1, 1, 2, 8, 64))):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed), bytes(changed) == area


def flip_bits_and_reseal(area: bytes, rng: random.Random) -> Mutation:
    """One byte of the JSON text, the same in both copies, checksums recomputed."""
    text = bytearray(area[forged.BINARY_BYTES : COPY].rstrip(b"\0"))
    for _ in range(rng.choice((1, 1, 1, 3))):
        text[rng.randrange(len(text))] = rng.choice((rng.randrange(256), *b'{}[]",:0123456789 \n\\'))
    whole = bytes(text)
    return forged.with_json(area, whole), b"\0" not in whole.rstrip(b"\0") and text_in_format_1(
        whole.split(b"\0")[0]
    )


def overwrite(area: bytes, rng: random.Random) -> Mutation:
    """A run of zeros, ones or noise, checksums left alone."""
    start, length = rng.randrange(len(area)), rng.choice((1, 16, 512, 4096, 16384))
    end = min(start + length, len(area))
    filler = rng.choice((bytes(end - start), b"\xff" * (end - start), rng.randbytes(end - start)))
    changed = area[:start] + filler + area[end:]
    return changed, changed == area


def truncate(area: bytes, rng: random.Random) -> Mutation:
    return area[: rng.randrange(len(area))], False


def swap_copies(area: bytes, rng: random.Random) -> Mutation:
    pieces = [area[:COPY], area[COPY:], bytes(COPY)]
    chosen = [rng.choice(pieces), rng.choice(pieces)]
    return b"".join(chosen), chosen == pieces[:2]


def binary_field(area: bytes, rng: random.Random) -> Mutation:
    """One field of the binary header, in both copies, checksums recomputed."""
    number = rng.choice((0, 1, 2, 512, 4096, 8192, 16384, 32768, 2**22, 2**22 + 1, 2**32, 2**63, 2**64 - 1))
    field, value, stays = rng.choice(
        (
            (0, rng.randbytes(6), False),
            (6, rng.choice((b"\0\1", b"\0\3", b"\2\0")), False),
            (forged.SIZE_FIELD, number.to_bytes(8, "big"), number == COPY),
            (forged.SEQUENCE_FIELD, number.to_bytes(8, "big"), True),
            (forged.LABEL_FIELD, rng.randbytes(48), True),
            (forged.SUBSYSTEM_FIELD, rng.randbytes(48), True),
            (forged.SALT_FIELD, rng.randbytes(64), True),
            (forged.CHECKSUM_ALGORITHM_FIELD, rng.randbytes(32), False),
            (forged.CHECKSUM_ALGORITHM_FIELD, rng.choice((b"sha1\0\0\0", b"SHA256", b"sha512")), False),
            (forged.UUID_FIELD, rng.randbytes(40), False),
            (forged.UUID_FIELD, forged.UUID[::-1].encode().ljust(40, b"\0"), False),
            (forged.UUID_FIELD, b"0f1c7c0e-3f0a-4d5e-9a57-0c8a5a0d9b1" + rng.choice((b"2", b"f")), True),
            # Equal in both copies, so wrong in at least one.
            (forged.OFFSET_FIELD, number.to_bytes(8, "big"), False),
            (rng.randrange(264, 447), b"\x01", False),
            (rng.randrange(512, 4095), b"\x01", False),
        )
    )
    return forged.with_field(area, field, value), stays


def replace_value(area: bytes, rng: random.Random) -> Mutation:
    document = forged.read_metadata(area)
    container = rng.choice([each for each in _containers(document) if each])
    container[rng.choice(_keys(container))] = copy.deepcopy(rng.choice(HOSTILE))
    return _sealed(area, document)


def nudge_number(area: bytes, rng: random.Random) -> Mutation:
    """A number near the one that was there, which bounds must tell apart; or the same, written otherwise."""
    document = forged.read_metadata(area)
    places = [
        (container, key)
        for container in _containers(document)
        for key in _keys(container)
        if type(container[key]) is int or (type(container[key]) is str and container[key].isdigit())
    ]
    container, key = rng.choice(places)
    if type(container[key]) is str and rng.random() < 0.2:
        container[key] = rng.choice(("0", "+", " ", "-")) + container[key]
        return _sealed(area, document)
    change = rng.choice((-4096, -512, -1, 1, 512, 4096, 258048, 516096))
    number = int(container[key]) + change
    container[key] = number if type(container[key]) is int else str(number)
    return _sealed(area, document)


def remove_member(area: bytes, rng: random.Random) -> Mutation:
    document = forged.read_metadata(area)
    container = rng.choice([each for each in _containers(document) if each])
    del container[rng.choice(_keys(container))]
    return _sealed(area, document)


def add_member(area: bytes, rng: random.Random) -> Mutation:
    document = forged.read_metadata(area)
    container = rng.choice(_containers(document))
    value = copy.deepcopy(rng.choice((rng.choice(HOSTILE), rng.choice(_containers(document)))))
    if isinstance(container, dict):
        container[rng.choice(NAMES)] = value
    else:
        container.insert(rng.randrange(len(container) + 1), value)
    return _sealed(area, document)


def move_member(area: bytes, rng: random.Random) -> Mutation:
    document = forged.read_metadata(area)
    container = rng.choice([each for each in _containers(document) if isinstance(each, dict) and each])
    container[rng.choice(NAMES)] = container.pop(rng.choice(list(container)))
    return _sealed(area, document)


def duplicate_member(area: bytes, rng: random.Random) -> Mutation:
    """A member written twice, the second time as it was: only the text shows it."""
    text = forged.json_text(forged.read_metadata(area))
    member = rng.choice(
        (
            b'"type":"crypt"',
            b'"tokens":{}',
            b'"size":"dynamic"',
            b'"iv_tweak":"0"',
            b'"keyslots_size":"1048576"',
        )
    )
    other = member.split(b":", 1)[0] + b":" + rng.choice((b"0", b'"linear"', b"{}", b'"0"', b"null"))
    return forged.with_json(area, text.replace(member, other + b"," + member, 1)), False


def change_keyslots(area: bytes, rng: random.Random) -> Mutation:
    """More or fewer keyslots, tied to the digest or not, their areas apart or not."""
    count = rng.randrange(7)
    document = forged.metadata(count)
    if rng.random() < 0.5:
        document["digests"]["0"]["keyslots"] = [str(number) for number in range(rng.randrange(7))]
    for slot in document["keyslots"].values():
        if rng.random() < 0.2:
            slot["area"]["offset"] = str(32768 + rng.randrange(0, 1048576, 4096))
    return _sealed(area, document)


def other_text(area: bytes, rng: random.Random) -> Mutation:
    """The JSON area as a whole: blanks, rubbish behind it, depth, encodings, no end."""
    text = forged.json_text(forged.read_metadata(area))
    depth = rng.choice((10, 31, 32, 33, 900, 1100, 5000))
    changed, stays = rng.choice(
        (
            (text + rng.choice((b" ", b"\n", b"\t ")), True),
            (text.replace(b",", b", ").replace(b":", b" : "), True),
            (b" " + text, False),
            (b"\xef\xbb\xbf" + text, False),
            (text + b"{}", False),
            (text + b"\0" + rng.randbytes(8) + b"\1", False),
            (text[: rng.randrange(len(text))], False),
            (text.replace(b"{}", b"[" * depth + b"]" * depth), False),
            (text.replace(b"{}", b'{"a":' * depth + b"{}" + b"}" * depth), False)
            if depth < 1500
            else (b"", False),
            (text.replace(b"{}", b"/**/{}"), False),
            (text.replace(b'"', b"'"), False),
            (text.replace(b"4096", b"04096"), False),
            (text.replace(b"4096", b"4096.0"), False),
            (text.replace(b"4096", b"NaN"), False),
            (text.replace(b"crypt", b"crypt\\u0000"), False),
            (text.replace(b"crypt", b"cr\xffypt"), False),
            (text.replace(b"crypt", b"\\u0063rypt"), True),
            (text.replace(b"}}}", b"},}}", 1), False),
            (text.ljust(JSON_BYTES, b" "), False),
            (text[:-1].ljust(JSON_BYTES - 1, b" ") + b"}", False),
            (text[:-1].ljust(JSON_BYTES - 2, b" ") + b"}", True),
            (text.replace(b"4096", b"4096" + b"0" * rng.choice((20, 400, 5000))), False),
            (text.decode().encode("utf-16-le"), False),
        )
    )
    return forged.with_json(area, changed), stays


def one_copy_only(area: bytes, rng: random.Random) -> Mutation:
    """Any of the resealed mutations, in one copy: then the copies differ."""
    changed, _ = rng.choice((binary_field, replace_value, add_member, remove_member, other_text))(area, rng)
    mixed = changed[:COPY] + area[COPY:] if rng.random() < 0.5 else area[:COPY] + changed[COPY:]
    salts_aside = bytearray(mixed)
    for start in (0, COPY):
        for field, length in ((forged.SALT_FIELD, 64), (forged.CHECKSUM_FIELD, 64)):
            salts_aside[start + field : start + field + length] = area[start + field : start + field + length]
    return mixed, bytes(salts_aside) == area


MUTATORS: tuple[Mutator, ...] = (
    flip_bits,
    flip_bits_and_reseal,
    overwrite,
    truncate,
    swap_copies,
    binary_field,
    replace_value,
    nudge_number,
    remove_member,
    add_member,
    move_member,
    duplicate_member,
    change_keyslots,
    other_text,
    one_copy_only,
)
