"""What the commands and files of single pages come to."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from agent.annotation import parse_annotation
from agent.initdata import parse_initdata
from agent.policy import Policy
from agent.policy_schema import parse_policy
from tests.docs.broker import Broker
from tests.docs.own_commands import WrongCommand, check_agent, driver_command
from tests.docs.pages import PAGES, SHELLS, TOP, Block, blocks, inline_code
from tests.docs.sandbox import Ran, Sandbox
from tests.docs.stand_ins import check_make
from tests.tools.ports import free_port

_DOCS = TOP / "docs"


def run(sandbox: Sandbox, shown: Iterable[Block]) -> list[Ran]:
    """Run the commands, also those that others leave to this test; all but the played ones must succeed."""
    all_ran = sandbox.run([replace(block, marker=None) if block.run_by else block for block in shown])
    assert [(ran.command.text, ran.output) for ran in all_ran if ran.status and not ran.block.played] == []
    return all_ran


def test_a_key_is_made_kept_stored_and_rotated_as_the_pages_say(tmp_path: Path, broker: Broker) -> None:
    pages = [_DOCS / "keys.md", _DOCS / "key-life.md"]
    sandbox = Sandbox(tmp_path, broker)
    run(sandbox, [block for page in pages for block in blocks(page)])
    stored = [(request.path, request.body) for request in broker.requests]
    (path, first), (previous_path, previous), (new_path, new) = stored
    assert len(first) == len(new) == 32
    assert previous == first != new
    assert path == new_path == "/kbs/v0/resource/default/volume-key/ledger"
    assert previous_path == path + ".previous"
    assert (sandbox.work / "kbs-admin.header").stat().st_mode & 0o777 == 0o600


def test_the_broker_gets_a_policy_that_names_the_initdata_of_the_page(tmp_path: Path, broker: Broker) -> None:
    page = _DOCS / "policy.md"
    sandbox = Sandbox(tmp_path, broker)
    token, store = [block for block in blocks(_DOCS / "keys.md") if "kbs-admin.header" in block.text][:2]
    run(sandbox, [token, store, *blocks(page)])
    request, of_volumes = broker.requests
    assert of_volumes.path == "/kbs/v0/resource/default/volume-policy/ledger"
    assert isinstance(parse_policy(of_volumes.body), Policy)
    assert request.path == "/kbs/v0/resource-policy"
    sent = base64.urlsafe_b64decode(json.loads(request.body)["policy"]).decode()
    digest = hashlib.sha256((sandbox.work / "initdata.toml").read_bytes()).hexdigest()
    assert f'{{"default/volume-key/ledger": {{"{digest}"}}}}' in sent


def test_the_guest_takes_the_initdata_of_the_first_volume(tmp_path: Path, broker: Broker) -> None:
    sandbox = Sandbox(tmp_path, broker)
    ran = run(sandbox, blocks(_DOCS / "first-volume.md"))
    text = (sandbox.work / "initdata.toml").read_bytes()
    calls = [call for one in ran for call in one.calls if call[:2] == ("kubectl", "annotate")]
    ((_, annotation),) = [
        argument.split("=", 1) for call in calls for argument in call if "cc_init_data=" in argument
    ]
    initdata = parse_initdata(annotation.encode(), hashlib.sha256(text).hexdigest().encode())
    policy = parse_policy(initdata.files["volumes.toml"])
    assert isinstance(policy, Policy)
    rules = (policy.volumes or {})["/data"]
    assert (rules.key_id, rules.minimum_size) == ("default/volume-key/ledger", 1 << 30)


def test_a_controller_shows_its_metrics_as_the_page_says(tmp_path: Path) -> None:
    (block,) = (block for block in blocks(_DOCS / "metrics.md") if block.language in SHELLS)
    folder, serve, look, stop = block.commands()
    script = "\n".join([folder.text, serve.text, look.text, stop.text, "wait"])
    script = script.replace("/tmp/", f"{tmp_path}/").replace("9810", str(free_port()))
    programs = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", script],
        env={**os.environ, "PATH": programs, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.stdout.splitlines() == list(look.output)


@pytest.mark.parametrize(
    "page", [_DOCS / "libvirt.md", _DOCS / "guides" / "libvirt-lab.md"], ids=lambda page: page.stem
)
def test_the_commands_for_a_storage_pool_are_right_for_the_real_virsh(
    page: Path, tmp_path: Path, broker: Broker
) -> None:
    ran = run(Sandbox(tmp_path, broker), blocks(page))
    calls = [call[1:] for one in ran for call in one.calls if call[0] == "virsh"]
    commands = [" ".join(call[2:] if call[0] == "-c" else call) for call in calls]
    # libvirt's test driver keeps all of it in the memory of one virsh.
    session = "; ".join([*(one for one in commands if one.startswith("pool-")), "pool-info volumes"])
    printed = subprocess.run(
        ["virsh", "--connect", "test:///default", session],
        capture_output=True,
        text=True,
        check=True,
        timeout=240,
    ).stdout
    assert re.search(r"State: +running", printed)
    assert re.search(r"Autostart: +yes", printed)


_FILES = [block for page in PAGES for block in blocks(page) if block.language in ("json", "toml", "yaml")]


@pytest.mark.parametrize("block", _FILES, ids=lambda block: block.place)
def test_what_is_shown_of_files_is_well_formed(block: Block) -> None:
    if block.language == "json":
        json.loads(block.text)
    elif block.language == "yaml":
        list(yaml.safe_load_all(block.text))
    else:
        shown = tomllib.loads(block.text)
        if "volumes" in shown:
            parse_policy(block.text)
    if block.title == "annotation.json":
        assert [volume.name for volume in parse_annotation(block.text.encode())] == ["vol-0"]


def test_lint_finds_no_mistake_in_the_manifests_values_and_policies_of_the_pages(tmp_path: Path) -> None:
    for block in _FILES:
        if block.language != "json":
            folder = tmp_path / block.page.stem
            folder.mkdir(exist_ok=True)
            (folder / f"line-{block.line}.{block.language}").write_text(block.text)
    command = Path(sys.executable).with_name("confidential-csi")
    done = subprocess.run(
        [command, "lint", tmp_path], capture_output=True, text=True, check=False, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(TOP)))
def test_commands_within_the_text_exist_with_their_options(page: Path) -> None:
    wrong = []
    for code in inline_code(page):
        program, *words = code.split()
        try:
            if program == "confidential-csi":
                check_words(words)
            elif program == "confidential-csi-agent" and words and words[0] in ("status", "unmount"):
                check_agent(words, TOP)
            elif program == "make" and words:
                check_make([word for word in words if not word.endswith("…")], TOP)
        except WrongCommand as error:
            wrong.append(f"{code}: {error}")
    assert wrong == []


def check_words(words: list[str]) -> None:
    """The subcommands and options exist; values may be left out or stand for something.

    Raises:
        WrongCommand: one does not.
    """
    named = [word.strip("…,.") for word in words]
    plain = next((n for n, word in enumerate(named) if not re.fullmatch("[a-z][a-z-]*", word)), len(named))
    command, _, rest = driver_command(named[:plain])
    assert all(not word.startswith("-") for word in rest)
    options = {option for parameter in command.params for option in parameter.opts} | {"--help", "--version"}
    for word in named[plain:]:
        if word.startswith("--") and word.partition("=")[0] not in options:
            raise WrongCommand(f"no option {word}")
