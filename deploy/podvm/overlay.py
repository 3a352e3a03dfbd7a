"""Write what cloud-api-adaptor's PodVM image build (mkosi) needs to take the agent in.

The folder is laid over ``src/cloud-api-adaptor/podvm`` of its checkout: ``resources/confidential-csi`` is the
tree that ends up in the image, and a file in ``mkosi.conf.d`` adds it and the packages that the image lacks.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from agent.errors import Refused
from agent.policy_schema import parse_policy
from deploy.podvm.build_agent import DEFAULT_TARGET

MODES: Final = {
    "a": "in front of the agent protocol forwarder",
    "b": "between the agent protocol forwarder and kata-agent",
    "c": "in front of the confidential data hub",
}
HERE: Final = Path(__file__).resolve().parent
#: In the folder: the image's own tree, and the configuration that adds it.
TREE: Final = Path("resources/confidential-csi")
CONFIGURATION: Final = Path("mkosi.images/system/mkosi.conf.d/confidential-csi.conf")
#: In the image.
AGENT: Final = Path("usr/local/bin/confidential-csi-agent")
POLICY: Final = Path("etc/confidential-csi/volumes.toml")


class FolderInUse(Exception):
    """The folder has a tree already: files of another mode could be left in it. Says which."""


def write_overlay(mode: str, folder: Path, agent: Path, policy: Path | None = None) -> list[Path]:
    """Write the overlay of a mode of :data:`MODES`; gives the files and links, relative to ``folder``.

    ``agent`` is the built agent; ``policy`` a volume policy to bake into the image.

    Raises:
        FolderInUse: there is an overlay in the folder.
        OSError: the agent or the policy can't be read, or the folder can't be written to.
        Refused: the agent would refuse the policy, and with it every volume (``policy-invalid``).
    """
    if policy is not None:
        parse_policy(policy.read_bytes())
    tree = folder / TREE
    if tree.exists():
        raise FolderInUse(f"{tree} exists; remove it, or choose another folder")
    for source in ("common", f"mode-{mode}"):
        shutil.copytree(HERE / "tree" / source, tree, symlinks=True, dirs_exist_ok=True)
    _copy(agent, tree / AGENT)
    if policy is not None:
        _copy(policy, tree / POLICY)
    _copy(HERE / "mkosi.conf", folder / CONFIGURATION)
    written = [path for path in tree.rglob("*") if not path.is_dir()]
    for path in written:
        # Whatever the umask and the checkout gave it: the bytes and modes of an image are measured.
        if not path.is_symlink():
            path.chmod(0o755 if path == tree / AGENT else 0o644)
    return sorted(path.relative_to(folder) for path in (*written, folder / CONFIGURATION))


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


def main(argv: Sequence[str] | None = None) -> int:
    """Write the overlay and print what was written."""
    parser = argparse.ArgumentParser(description=__doc__)
    modes = "; ".join(f"{mode}: {where}" for mode, where in MODES.items())
    parser.add_argument("--mode", required=True, choices=MODES, help=modes)
    parser.add_argument("--into", required=True, type=Path, metavar="FOLDER")
    parser.add_argument("--agent", type=Path, default=DEFAULT_TARGET, metavar="FILE", help="(%(default)s)")
    parser.add_argument("--policy", type=Path, metavar="FILE", help="a volumes.toml to bake into the image")
    arguments = parser.parse_args(argv)
    try:
        written = write_overlay(arguments.mode, arguments.into, arguments.agent, arguments.policy)
    except (FolderInUse, Refused, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    total = 0
    for path in written:
        size = (arguments.into / path).lstat().st_size
        total += size
        sys.stdout.write(f"{size:>9}  {path}\n")
    sys.stdout.write(f"{total:>9}  bytes in {len(written)} files for {arguments.into}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
