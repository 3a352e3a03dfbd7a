"""The grammar of ``kbs-key-id``: a KBS resource path without scheme (``repository/type/tag``).

The guest puts ``kbs:///`` in front by itself. The agent has its own copy of this grammar, as the two
sides share no code; ``tests/vectors`` holds both to the same examples.
"""

from __future__ import annotations

import re

from driver.errors import InvalidArgument

#: Bytes; leaves room for it in every message and in the volume context.
MAXIMUM_LENGTH = 200

_SEGMENT = r"[A-Za-z0-9_-][A-Za-z0-9_.-]*"
_KEY_PATH = re.compile(f"{_SEGMENT}/{_SEGMENT}/{_SEGMENT}", re.ASCII)


def check_key_path(value: str) -> None:
    """Refuse what Trustee's KBS would not take as a resource path.

    Raises:
        InvalidArgument: it is malformed or longer than 200 bytes.
    """
    if len(value.encode("utf-8", "replace")) > MAXIMUM_LENGTH:
        raise InvalidArgument(f"kbs-key-id is longer than {MAXIMUM_LENGTH} bytes")
    if _KEY_PATH.fullmatch(value):
        return
    hint = ""
    if "://" in value:
        hint = "; leave out the scheme, the guest adds kbs:/// itself"
    elif value.count("/") == 1:
        hint = "; the repository (first segment) is mandatory"
    raise InvalidArgument(
        f"kbs-key-id {value[:80]!r} is not a KBS resource path: expected repository/type/tag, each of "
        f"letters, digits, '_', '-' and (not first) '.'{hint}"
    )
