"""What the tools take for encrypted is what the driver takes for it."""

from __future__ import annotations

import pytest

from cli.kubernetes_objects import Claimed, says_encrypted
from driver.encryption import checked_encryption
from driver.errors import InvalidArgument


@pytest.mark.parametrize("encrypt_type", ["luks", "luks2"])
def test_a_volume_that_the_driver_has_encrypted_is_called_so(encrypt_type: str) -> None:
    given = {"encrypt-type": encrypt_type, "kbs-key-id": "default/key/1"}
    assert says_encrypted(given)
    assert checked_encryption(given)


@pytest.mark.parametrize(
    "given",
    [
        {"encrypt-type": "LUKS2", "kbs-key-id": "default/key/1"},
        {"encrypt-type": "aes", "kbs-key-id": "default/key/1"},
        {"encrypt-type": "", "kbs-key-id": "default/key/1"},
        {"encrypt-type": "luks2"},
        {"encrypt-type": "luks2", "kbs-key-id": ""},
        {"kbs-key-id": "default/key/1"},
    ],
)
def test_a_volume_that_would_be_mounted_in_the_clear_is_not_called_encrypted(given: dict[str, str]) -> None:
    """Field case L3: the guest's side mounts what it does not understand without encryption."""
    assert not says_encrypted(given)
    with pytest.raises(InvalidArgument):
        checked_encryption(given)


def test_a_volume_that_is_kept_for_a_claim_of_no_namespace_is_taken() -> None:
    """As people write it: no claim is bound to it, and the API server takes it."""
    spec = {"csi": {"driver": "d", "volumeHandle": "vol-1"}, "claimRef": {"name": "data"}}
    assert Claimed.of({"metadata": {"name": "pv"}, "spec": spec}).claim == "/data"
