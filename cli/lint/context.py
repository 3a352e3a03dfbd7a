"""What every room of lint works with."""

from __future__ import annotations

from dataclasses import dataclass, field

from cli.lint.clouds import Clouds
from cli.lint.cluster import Cluster
from cli.lint.findings import Place, Report
from cli.lint.located import Block, Manifest


@dataclass
class Context:
    """The objects, the clouds' rules and the report."""

    clouds: Clouds
    peer_pod_classes: frozenset[str] = frozenset()
    """RuntimeClasses that are peer pods because the caller says so."""
    cluster: Cluster = field(default_factory=Cluster)
    report: Report = field(default_factory=Report)

    def note(self, rule: str, manifest: Manifest, line: int, message: str) -> None:
        """Report a finding on a line of an object."""
        self.report.add(rule, Place(manifest.file, line), manifest.subject, message)

    def note_at(self, rule: str, manifest: Manifest, block: Block, key: str, message: str) -> None:
        """Report a finding on the line of a key, or where the mapping begins if the key is missing."""
        self.note(rule, manifest, block.line_of(key), message)
