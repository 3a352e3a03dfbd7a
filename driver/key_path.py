"""The grammar of ``kbs-key-id``: a KBS resource path without scheme (``repository/type/tag``).

The guest puts ``kbs:///`` in front by itself. The agent has its own copy of this grammar, as the two
sides share no code; ``tests/vectors`` holds both to the same examples.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from driver import key_template
from driver.errors import InvalidArgument

#: Bytes; leaves room for it in every message and in the volume context.
MAXIMUM_LENGTH = 200

_SEGMENT = r"[A-Za-z0-9_-][A-Za-z0-9_.-]*"
_KEY_PATH = re.compile(f"{_SEGMENT}/{_SEGMENT}/{_SEGMENT}", re.ASCII)


def check_key_template(value: str) -> None:
    """Refuse a key id, literal or template, that no volume could use.

    Raises:
        InvalidArgument: a placeholder is unknown, or what is around them is malformed.
    """
    try:
        bare = key_template.skeleton(value)
    except key_template.TemplateError as error:
        raise InvalidArgument(f"kbs-key-id: {error}") from error
    try:
        check_key_path(bare)
    except InvalidArgument as error:
        if bare == value:
            raise
        raise InvalidArgument(
            f"kbs-key-id {value[:200]!r} can't become a KBS resource path for any volume: expected "
            "repository/type/tag around the placeholders"
        ) from error


def expand_key_path(value: str, metadata: Mapping[str, str]) -> str:
    """The key path of one volume. ``metadata`` holds what is known of its claim, by ``pvc/name`` etc.

    Raises:
        InvalidArgument: the template can't be expanded, or ends in a malformed or too long key path.
    """
    try:
        expanded = key_template.expand(value, metadata)
    except key_template.TemplateError as error:
        raise InvalidArgument(f"kbs-key-id: {error}") from error
    try:
        check_key_path(expanded)
    except InvalidArgument as error:
        if expanded == value:
            raise
        raise InvalidArgument(
            f"{error} (expanded from {value[:200]!r}; use shorter names or another template)"
        ) from error
    return expanded


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
