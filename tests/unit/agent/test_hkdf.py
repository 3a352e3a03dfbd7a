"""HKDF against the test vectors of RFC 5869, appendix A."""

from __future__ import annotations

import pytest

from agent.hkdf import hkdf_sha256


def test_rfc_5869_case_1() -> None:
    output = hkdf_sha256(
        bytes([0x0B]) * 22,
        salt=bytes(range(13)),
        info=bytes(range(0xF0, 0xFA)),
        length=42,
    )
    assert output.hex() == (
        "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865"
    )


def test_rfc_5869_case_2_longer_inputs_and_output() -> None:
    output = hkdf_sha256(
        bytes(range(0x50)),
        salt=bytes(range(0x60, 0xB0)),
        info=bytes(range(0xB0, 0x100)),
        length=82,
    )
    assert output.hex() == (
        "b11e398dc80327a1c8e7f78c596a49344f012eda2d4efad8a050cc4c19afa97c"
        "59045a99cac7827271cb41c65e590e09da3275600c2f09b8367793a9aca3db71"
        "cc30c58179ec3e87c14c01d5c1f3434f1d87"
    )


def test_rfc_5869_case_3_no_salt_no_info() -> None:
    output = hkdf_sha256(bytes([0x0B]) * 22, info=b"", length=42)
    assert output.hex() == (
        "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8"
    )


@pytest.mark.parametrize("length", [0, -1, 255 * 32 + 1])
def test_an_impossible_length_is_a_mistake_of_the_caller(length: int) -> None:
    with pytest.raises(ValueError, match="length"):
        hkdf_sha256(b"x", info=b"", length=length)
