"""libvirt's errors in the interface's terms: by code and state, never by message.

Codes are libvirt's ``virErrorNumber``; a system error carries ``errno`` as its first integer.
"""

from __future__ import annotations

import errno

import libvirt

from providers.errors import ProviderError, QuotaExceededError, UnavailableError

_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_SHOWN_CHARACTERS = 300


def code_of(error: libvirt.libvirtError) -> int:
    """The error's number."""
    return int(error.get_error_code() or 0)


def has_code(error: libvirt.libvirtError, *codes: int) -> bool:
    """Whether the error's number is one of ``codes``."""
    return code_of(error) in codes


def system_error(error: libvirt.libvirtError) -> int:
    """The ``errno`` in the error; 0 if it is not a system error."""
    return int(error.get_int1() or 0) if has_code(error, libvirt.VIR_ERR_SYSTEM_ERROR) else 0


def is_missing(error: libvirt.libvirtError) -> bool:
    """Whether libvirt says that the volume, or the file behind it, does not exist."""
    return has_code(error, libvirt.VIR_ERR_NO_STORAGE_VOL) or system_error(error) == errno.ENOENT


def is_busy(error: libvirt.libvirtError) -> bool:
    """Whether the volume is being filled, or copied from, by another call (or its pool is not active)."""
    return has_code(error, libvirt.VIR_ERR_OPERATION_INVALID)


def is_refusal(error: BaseException | None) -> bool:
    """Whether libvirt does not let this process in, which no waiting mends."""
    return isinstance(error, libvirt.libvirtError) and has_code(
        error,
        libvirt.VIR_ERR_AUTH_FAILED,
        libvirt.VIR_ERR_AUTH_CANCELLED,
        libvirt.VIR_ERR_AUTH_UNAVAILABLE,
        libvirt.VIR_ERR_ACCESS_DENIED,
    )


def translated(error: libvirt.libvirtError, doing: str) -> ProviderError:
    """The error of this interface for one of libvirt's that has no meaning of its own at that place."""
    if system_error(error) in _NO_ROOM:
        return QuotaExceededError(f"no space left for {doing}; delete volumes or snapshots, or ask for less")
    shown = str(error)[:_SHOWN_CHARACTERS]
    return UnavailableError(f"{doing}: libvirt answered {code_of(error)} ({shown}); call again")
