"""The shared guest under a volume policy, measured as cloud-api-adaptor's initdata is."""

from __future__ import annotations

from pathlib import Path

from agent.luks2 import newest_valid
from tests.guest.pod import KEY_ID, MIB, SOURCE, Pod
from tests.unit.agent.policy_support import initdata

#: The fields of a volume under the key of the tests.
LUKS = f'key = "{KEY_ID}"'
OTHER_UUID = "00000000-1111-4222-8333-444444444444"


class Guest:
    """The shared guest, under a policy."""

    def __init__(self, pod: Pod) -> None:
        self.pod = pod

    def measure(self, policy: str) -> None:
        """Put the policy where cloud-api-adaptor puts initdata."""
        blob, digest = initdata({"aa.toml": "", "volumes.toml": policy})
        self.write("/run/peerpod/initdata", blob)
        self.write("/run/peerpod/initdata.digest", digest)

    def rules(self, fields: str) -> None:
        """Measure a policy with these fields for ``/data``."""
        self.measure(f'version = 1\n[volumes."/data"]\n{fields}\n')

    def write(self, path: str, content: bytes) -> None:
        """Write a file in the guest."""
        self.pod.vm.check(["sh", "-ec", f"mkdir -p $(dirname {path}); cat >{path}"], stdin=content)

    def forget(self) -> None:
        """Leave the guest without a policy."""
        self.pod.sh("rm -rf /run/peerpod /etc/confidential-csi")

    def mount_options(self) -> set[str]:
        """How the first volume is mounted."""
        return set(self.pod.sh(f"grep ' {SOURCE} ' /proc/mounts").decode().split()[3].split(","))


def uuid_of(image: Path) -> str:
    """The LUKS UUID of a volume."""
    with image.open("rb") as file:
        return newest_valid(file.read(4 * MIB)).binary.uuid
