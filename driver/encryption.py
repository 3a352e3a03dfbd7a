"""The two parameters that make a volume encrypted, as a StorageClass gives them and a PV carries them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from driver.errors import InvalidArgument
from driver.key_path import check_key_path

ENCRYPT_TYPE = "encrypt-type"
KBS_KEY_ID = "kbs-key-id"

#: Written exactly so, in lower case; both mean LUKS2 in the guest. Anything else CAA's guest side mounts
#: in the clear.
ENCRYPT_TYPES = ("luks", "luks2")


def checked_encryption(
    given: Mapping[str, str], check_key: Callable[[str], None] = check_key_path
) -> tuple[str, str] | None:
    """Type and key path; None when neither is given. Half of it would end in the clear (field case L3).

    Args:
        check_key: raises InvalidArgument for a malformed key id; a template of one is malformed by default.

    Raises:
        InvalidArgument: one without the other, an unknown type, or a malformed key path.
    """
    encrypt_type, key_id = given.get(ENCRYPT_TYPE), given.get(KBS_KEY_ID)
    if encrypt_type is None and key_id is None:
        return None
    if key_id is None:
        raise InvalidArgument(f"{ENCRYPT_TYPE} is set and {KBS_KEY_ID} is not; set both, or neither")
    if encrypt_type is None:
        raise InvalidArgument(f"{KBS_KEY_ID} is set and {ENCRYPT_TYPE} is not; set both, or neither")
    if encrypt_type not in ENCRYPT_TYPES:
        hint = (
            "; write it in lower case, without spaces"
            if encrypt_type.strip().lower() in ENCRYPT_TYPES
            else f"; for an unencrypted volume leave out {ENCRYPT_TYPE} and {KBS_KEY_ID}"
        )
        raise InvalidArgument(
            f"{ENCRYPT_TYPE} is {encrypt_type[:64]!r}; expected {' or '.join(ENCRYPT_TYPES)}{hint}"
        )
    check_key(key_id)
    return encrypt_type, key_id
