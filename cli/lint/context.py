"""What every room of lint works with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from cli.lint.clouds import Clouds
from cli.lint.cluster import Cluster
from cli.lint.findings import Place, Report
from cli.lint.located import Block, Manifest

#: Of cloud-api-adaptor, as it installs it.
PEER_POD_HANDLER: Final = "kata-remote"


@dataclass
class Context:
    """The objects, the clouds' rules and the report."""

    clouds: Clouds
    peer_pod_handlers: frozenset[str] = frozenset({PEER_POD_HANDLER})
    """Handlers of RuntimeClasses that start peer pods, as the node plugin is told them."""
    cluster: Cluster = field(default_factory=Cluster)
    report: Report = field(default_factory=Report)

    def note(self, rule: str, manifest: Manifest, line: int, message: str) -> None:
        """Report a finding on a line of an object."""
        self.report.add(rule, Place(manifest.file, line), manifest.subject, message)

    def note_at(self, rule: str, manifest: Manifest, block: Block, key: str, message: str) -> None:
        """Report a finding on the line of a key, or where the mapping begins if the key is missing."""
        self.note(rule, manifest, block.line_of(key), message)
