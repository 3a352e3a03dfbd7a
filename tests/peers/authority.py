"""A certificate authority for tests of TLS."""

from __future__ import annotations

import subprocess
from pathlib import Path


class Authority:
    """A certificate authority made with the openssl command: its own root, unless ``issuer`` signs for it."""

    def __init__(self, folder: Path, name: str, issuer: Authority | None = None) -> None:
        self.folder = folder
        self.name = name
        signed = (
            ("-CA", issuer.certificate, "-CAkey", issuer.certificate.with_suffix(".key")) if issuer else ()
        )
        files = ("-keyout", f"{name}.key", "-out", f"{name}.pem")
        self._openssl("req", "-x509", "-subj", f"/CN={name}", *signed, *files)

    def issue(self, name: str, usage: str, hosts: str = "DNS:localhost") -> tuple[Path, Path]:
        """A certificate for localhost, or other ``hosts``, and its key."""
        extensions = self.folder / f"{name}.ext"
        extensions.write_text(f"subjectAltName={hosts}\nextendedKeyUsage={usage}\n")
        self._openssl("req", "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        subprocess.run(
            [
                *("openssl", "x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.pem"),
                *("-CA", f"{self.name}.pem", "-CAkey", f"{self.name}.key", "-CAcreateserial"),
                *("-extfile", extensions),
            ],
            cwd=self.folder,
            check=True,
            capture_output=True,
        )
        return self.folder / f"{name}.pem", self.folder / f"{name}.key"

    @property
    def certificate(self) -> Path:
        return self.folder / f"{self.name}.pem"

    def _openssl(self, *arguments: str | Path) -> None:
        key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
        subprocess.run(
            ["openssl", arguments[0], *key, *arguments[1:]], cwd=self.folder, check=True, capture_output=True
        )
