"""What the real cryptsetup says about a header, always asked about a copy: reading may repair."""

import json
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DEVICE_BYTES = 32 * 1024 * 1024


@dataclass(frozen=True)
class Verdict:
    """``dump`` is the JSON text that cryptsetup loaded, None if it refused the header."""

    dump: bytes | None

    @property
    def accepted(self) -> bool:
        return self.dump is not None

    def metadata(self) -> dict[str, Any]:
        """What cryptsetup loaded, decoded. The header must have been accepted."""
        assert self.dump is not None
        decoded: dict[str, Any] = json.loads(self.dump)
        return decoded


def run(*arguments: str | Path, key: bytes = b"", check: bool = True) -> subprocess.CompletedProcess[bytes]:
    """Run cryptsetup in batch mode with ``key`` on its standard input."""
    command = ["cryptsetup", "--batch-mode", *map(str, arguments)]
    done = subprocess.run(command, input=key, capture_output=True, timeout=240, check=False)
    if check and done.returncode:
        raise AssertionError(f"{command}: {done.returncode}: {done.stderr.decode(errors='replace')}")
    return done


def write_device(path: Path, area: bytes, size: int = DEVICE_BYTES) -> Path:
    """A sparse image of ``size`` bytes that starts with ``area``."""
    with path.open("wb") as image:
        image.write(area)
        image.truncate(size)
    return path


def verdict(area: bytes, scratch: Path, size: int = DEVICE_BYTES) -> Verdict:
    """Load a device that starts with ``area``."""
    dump = run("luksDump", "--dump-json-metadata", write_device(scratch, area, size), check=False)
    return Verdict(None if dump.returncode else dump.stdout)


def dumped_fields(image: Path) -> dict[str, str]:
    """The fields of the binary header as luksDump prints them."""
    text = run("luksDump", image).stdout.decode()
    names = ("Version", "Epoch", "Metadata area", "Keyslots area", "UUID", "Label", "Subsystem")
    found = {name: re.search(rf"^{name}:\s*(.*)$", text, re.MULTILINE) for name in names}
    return {name: match[1].strip() for name, match in found.items() if match is not None}
