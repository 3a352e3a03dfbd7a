"""Pages of a listing in name order. A token names the last object shown, so deletions do not upset it."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterable

from providers.errors import InvalidTokenError
from providers.interface import Item, Page


def page(
    is_ours: Callable[[str], bool],
    names: Iterable[str],
    load: Callable[[str], Item | None],
    max_entries: int,
    token: str,
) -> Page[Item]:
    """The objects among ``names`` that ``load`` finds, behind ``token``, at most ``max_entries`` if not 0.

    ``is_ours`` tells whether text can be a name of that kind.

    Raises:
        InvalidTokenError: the token is not one of ours.
    """
    after = _decode(is_ours, token) if token else ""
    items: list[Item] = []
    last = ""
    for name in sorted(names):
        if name <= after or (item := load(name)) is None:
            continue
        if max_entries and len(items) == max_entries:
            return Page(tuple(items), _encode(last))
        items.append(item)
        last = name
    return Page(tuple(items), "")


def _encode(name: str) -> str:
    return base64.urlsafe_b64encode(name.encode()).decode()


def _decode(is_ours: Callable[[str], bool], token: str) -> str:
    try:
        name = base64.b64decode(token.encode("ascii"), altchars=b"-_", validate=True).decode("ascii")
    except (binascii.Error, ValueError) as error:
        raise _bad_token() from error
    if not is_ours(name):
        raise _bad_token()
    return name


def _bad_token() -> InvalidTokenError:
    return InvalidTokenError("the starting token is not one that this driver handed out; start without one")
