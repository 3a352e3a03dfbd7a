"""The two parameters that make a volume encrypted, as a StorageClass gives them and a PV carries them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from driver.errors import InvalidArgument
from driver.key_path import check_key_path
from driver.problems import Problem, ProblemKind

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
    for problem in encryption_problems(given, check_key):
        raise InvalidArgument(problem.message)
    if ENCRYPT_TYPE not in given:
        return None
    return given[ENCRYPT_TYPE], given[KBS_KEY_ID]


def encryption_problems(
    given: Mapping[str, str], check_key: Callable[[str], None] = check_key_path
) -> Iterator[Problem]:
    """All that :func:`checked_encryption` would refuse, in the order in which it looks."""
    encrypt_type, key_id = given.get(ENCRYPT_TYPE), given.get(KBS_KEY_ID)
    if encrypt_type is not None and key_id is None:
        yield _incomplete(ENCRYPT_TYPE, KBS_KEY_ID)
    if key_id is not None and encrypt_type is None:
        yield _incomplete(KBS_KEY_ID, ENCRYPT_TYPE)
    if encrypt_type is not None and encrypt_type not in ENCRYPT_TYPES:
        hint = (
            "; write it in lower case, without spaces"
            if encrypt_type.strip().lower() in ENCRYPT_TYPES
            else f"; for an unencrypted volume leave out {ENCRYPT_TYPE} and {KBS_KEY_ID}"
        )
        yield Problem(
            ProblemKind.ENCRYPT_TYPE,
            ENCRYPT_TYPE,
            f"{ENCRYPT_TYPE} is {encrypt_type[:64]!r}; expected {' or '.join(ENCRYPT_TYPES)}{hint}",
        )
    if key_id is not None:
        try:
            check_key(key_id)
        except InvalidArgument as error:
            yield Problem(ProblemKind.KEY_ID, KBS_KEY_ID, str(error))


def _incomplete(given: str, missing: str) -> Problem:
    return Problem(
        ProblemKind.ENCRYPTION_INCOMPLETE,
        given,
        f"{given} is set and {missing} is not; set both, or neither",
    )
