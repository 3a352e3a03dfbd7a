"""Decoding initdata, and believing it only if it is what was measured."""

from __future__ import annotations

import base64
import gzip
import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.errors import Refused
from agent.initdata import MAX_INITDATA, parse_initdata
from tests.unit.agent.policy_support import initdata

FILES = {"volumes.toml": "version = 1\n[volumes]\n", "aa.toml": ""}
TEXT = b'algorithm = "sha256"\nversion = "0.1.0"\n[data]\n"a" = "b"\n'


def sha256(text: bytes) -> bytes:
    return hashlib.sha256(text).hexdigest().encode()


def packed(text: bytes) -> bytes:
    return base64.b64encode(gzip.compress(text))


def refusal(blob: bytes, digest: bytes) -> str:
    with pytest.raises(Refused) as raised:
        parse_initdata(blob, digest)
    assert len(str(raised.value).encode()) < 990
    return raised.value.rule


@pytest.mark.parametrize("algorithm", ["sha256", "sha384", "sha512"])
def test_the_blob_is_decoded_and_its_digest_compared(algorithm: str) -> None:
    blob, digest = initdata(FILES, algorithm)
    found = parse_initdata(blob, digest)
    assert dict(found.files) == FILES
    assert found.algorithm == algorithm
    assert found.digest.hex().encode() == digest


def test_cloud_api_adaptors_own_blob_is_read() -> None:
    """Made by its Go code for a pod without initdata (Go's gzip and base64)."""
    text = b"algorithm = \"sha256\"\nversion = \"0.1.0\"\n\n[data]\n\"aa.toml\" = '''\n'''"
    blob, digest = packed(text), sha256(text)
    assert dict(parse_initdata(blob, digest).files) == {"aa.toml": ""}


def test_plain_text_and_line_breaks_are_taken_too() -> None:
    assert parse_initdata(TEXT, sha256(TEXT)).files == {"a": "b"}
    blob = packed(TEXT)
    assert parse_initdata(blob[:20] + b"\n" + blob[20:] + b"\n", sha256(TEXT) + b"\n").files == {"a": "b"}


def test_no_data_is_no_files() -> None:
    text = b'algorithm = "sha256"\nversion = "0.1.0"\n'
    assert parse_initdata(text, sha256(text)).files == {}


def test_a_blob_that_was_not_measured_is_refused() -> None:
    """The host may put any file there; what it can't do is measure it afterwards."""
    blob, _ = initdata(FILES)
    _, other = initdata({**FILES, "aa.toml": "x"})
    assert refusal(blob, other) == "initdata-digest"
    assert refusal(blob, b"") == "initdata-digest"
    assert refusal(blob, b"not hexadecimal") == "initdata-digest"
    assert refusal(blob, "\uff41".encode()) == "initdata-digest"
    assert refusal(blob, b"0" * 100_000) == "initdata-digest"


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\xff",
        b"version = 1",
        TEXT.replace(b"sha256", b"md5"),
        TEXT.replace(b'"sha256"', b"256"),
        TEXT.replace(b"0.1.0", b"0.2.0"),
        TEXT.replace(b'"0.1.0"', b"0.1"),
        TEXT.replace(b'"b"', b"1"),
        b'algorithm = "sha256"\nversion = "0.1.0"\ndata = []\n',
        b'algorithm = "sha256"\nversion = "0.1.0"\nx = ' + b"[" * 10000,
    ],
)
@pytest.mark.parametrize("form", ["plain", "packed"])
def test_what_is_no_initdata_is_refused(text: bytes, form: str) -> None:
    assert refusal(text if form == "plain" else packed(text), sha256(text)) == "initdata-invalid"


@pytest.mark.parametrize(
    "blob",
    [
        base64.b64encode(b"something else"),
        base64.b64encode(gzip.compress(TEXT)[:-4]),
        base64.b64encode(gzip.compress(TEXT) + b"x"),
        base64.b64encode(gzip.compress(TEXT) * 2),
        base64.b64encode(gzip.compress(TEXT)[:12] + b"\xff" * 30),
        base64.b64encode(gzip.compress(bytes(MAX_INITDATA + 1))),
        b"A" * (MAX_INITDATA + 4),
        b"#" * (MAX_INITDATA + 1),
    ],
    ids=["not-gzip", "cut", "trailing", "two-members", "garbage", "bomb", "large", "large-text"],
)
def test_a_blob_that_can_not_be_decoded_is_refused(blob: bytes) -> None:
    assert refusal(blob, sha256(TEXT)) == "initdata-invalid"


@given(st.binary(max_size=300), st.binary(max_size=80))
def test_no_input_ends_in_another_error(blob: bytes, digest: bytes) -> None:
    for one in (blob, base64.b64encode(blob), packed(blob)):
        assert refusal(one, digest) in {"initdata-invalid", "initdata-digest"}
