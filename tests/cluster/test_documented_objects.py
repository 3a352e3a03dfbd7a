"""The objects and the kubectl commands of the pages, before a real API server and with the real kubectl."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import yaml

from tests.cluster.api import until
from tests.cluster.control_plane import ControlPlane
from tests.cluster.programs import Programs
from tests.docs.broker import running_broker
from tests.docs.pages import PAGES, SHELLS, Block, blocks
from tests.docs.sandbox import Sandbox
from tests.tools.own_folders import own_folder

#: They change something, and can be asked what they would change.
_DRY_RUN = frozenset({"annotate", "apply", "create", "delete", "drain", "label", "patch", "scale"})
#: Without them a command ends.
_FOLLOWING = frozenset({"--watch", "-w"})
#: The API server understood, and has no such object; or kubectl did, and lacks what was only played.
_UNDERSTOOD = re.compile(
    r"\bNotFound\b|not found|no matching resources|no objects passed|error reading|name may not be empty"
)
_RUNTIME_CLASS = """
apiVersion: node.k8s.io/v1
kind: RuntimeClass
metadata: {name: kata-remote}
handler: kata-remote
"""


@pytest.fixture(scope="module")
def empty(kubernetes: Programs) -> Iterator[ControlPlane]:
    """A control plane with no object of ours, so that no page's object meets one of the same name."""
    with own_folder("cluster") as folder, ControlPlane(kubernetes, folder) as running:
        running.define_snapshots()
        running.apply(_RUNTIME_CLASS)
        until(lambda: running.api.find("ServiceAccount", "default"), what="pods can be made")
        yield running


def _objects() -> list[Block]:
    """The blocks that hold whole objects of Kubernetes."""
    shown = [block for page in PAGES for block in blocks(page) if block.language == "yaml"]
    return [
        block
        for block in shown
        if all(isinstance(one, dict) and "apiVersion" in one for one in yaml.safe_load_all(block.text))
    ]


@pytest.mark.parametrize("block", _objects(), ids=lambda block: block.place)
def test_an_api_server_takes_the_objects_of_the_pages(empty: ControlPlane, block: Block) -> None:
    command = ("create", "--dry-run=server", "--validate=strict", "-f", "-")
    assert "created (server dry run)" in empty.kubectl(*command, text=block.text)


def test_kubectl_and_the_api_server_understand_the_commands_of_the_pages(
    empty: ControlPlane, tmp_path: Path
) -> None:
    understood, wrong = 0, []
    with running_broker(tmp_path) as broker:
        for number, page in enumerate(PAGES):
            if not any(block.language in SHELLS for block in blocks(page)):
                continue
            directory = tmp_path / str(number)
            directory.mkdir()
            sandbox = Sandbox(directory, broker)
            for ran in sandbox.run(blocks(page)):
                for program, *arguments in ran.calls:
                    # Where programs are only played, files are, too.
                    if program != "kubectl" or (ran.block.played and "-f" in arguments):
                        continue
                    why = _misunderstood(empty, arguments, sandbox.work)
                    if why is None:
                        understood += 1
                    else:
                        wrong.append(f"{page.name}:{ran.command.line}: kubectl {' '.join(arguments)}: {why}")
    assert not wrong, "\n".join(wrong)
    assert understood > 10


def _misunderstood(control_plane: ControlPlane, arguments: Sequence[str], directory: Path) -> str | None:
    """What kubectl or the API server has against a command, which changes nothing here."""
    words = [word for word in arguments if word not in _FOLLOWING]
    verb = next((number for number, word in enumerate(words) if word in _DRY_RUN), None)
    if verb is not None and "--local" not in words:
        words.insert(verb + 1, "--dry-run=server")
    done = subprocess.run(
        [control_plane.programs["kubectl"], f"--kubeconfig={control_plane.kubeconfig}", *words],
        cwd=directory,
        env=control_plane.environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return None if done.returncode == 0 or _UNDERSTOOD.search(done.stderr) else done.stderr
