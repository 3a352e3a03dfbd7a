"""Kubernetes' quantities, as in ``storage: 10Gi``."""

from __future__ import annotations

import math
import re
from fractions import Fraction
from typing import Final

_FORM: Final = re.compile(
    r"(\+?(?:[0-9]{1,30}(?:\.[0-9]{0,30})?|\.[0-9]{1,30}))([numkKMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]{1,2})?",
    re.ASCII,
)
_UNITS: Final = {
    **{unit: Fraction(1 << 10 * power) for power, unit in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)},
    **{unit: Fraction(1000**power) for power, unit in enumerate(("k", "M", "G", "T", "P", "E"), 1)},
    **{unit: Fraction(1, 1000**power) for power, unit in enumerate(("m", "u", "n"), 1)},
    "": Fraction(1),
}


def parse_bytes(text: str) -> int | None:
    """The bytes of a quantity, a fraction rounded up as Kubernetes does; None if it is none, or negative."""
    form = _FORM.fullmatch(text)
    if form is None:
        return None
    number, unit = Fraction(form[1]), form[2] or ""
    factor = _UNITS.get(unit)
    if factor is None:
        if not unit.lower().startswith("e"):
            return None
        factor = Fraction(10) ** int(unit[1:])
    return math.ceil(number * factor)


def shown(size: int) -> str:
    """``size`` bytes as a quantity, exactly."""
    for unit in ("Ti", "Gi", "Mi", "Ki"):
        factor = int(_UNITS[unit])
        if size and size % factor == 0:
            return f"{size // factor}{unit}"
    return str(size)


def rounded(size: int) -> str:
    """``size`` bytes for people: ``10 GiB`` if it is exactly that, else to a tenth, as ``9.3 GiB``."""
    exponent = max(0, min(6, (size.bit_length() - 1) // 10))
    unit = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")[exponent]
    factor = 1 << 10 * exponent
    return f"{size // factor} {unit}" if size % factor == 0 else f"{size / factor:.1f} {unit}"
