"""``confidential-csi policy``: checks volume policies and writes them (``docs/policy.md``)."""

from __future__ import annotations

import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from agent.errors import Refused
from agent.policy import Encryption, Format, Measurement, Policy, VolumeRules
from agent.policy_schema import PolicyResource, parse_policy
from cli.pod_policy import CannotWrite, write_policy
from cli.quantity import rounded

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.group(short_help="Check and write volume policies.")
def policy() -> None:
    """Check and write volume policies: what the guest demands of the volumes that the host brings."""


@policy.command(short_help="Say in words what a policy means.")
@click.argument("file", type=_FILE)
def check(file: Path) -> None:
    """Say in words what the policy in FILE means; fail if the guest would refuse it."""
    content = file.read_bytes()
    try:
        parsed = parse_policy(content)
    except Refused as refused:
        if _is_initdata(content):
            raise click.ClickException(
                f"{file} is initdata, not a policy; 'confidential-csi lint' checks the policy in it"
            ) from None
        raise click.ClickException(f"{file}: {refused}") from None
    click.echo("\n".join(explain(parsed)))


@policy.command(name="for", short_help="Write a policy for a pod.")
@click.argument("pod", type=_FILE)
@click.argument("more", type=_FILE, nargs=-1)
def write_for(pod: Path, more: tuple[Path, ...]) -> None:
    """Write a policy for the pod (or Deployment, StatefulSet, ...) in the YAML file POD.

    MORE are YAML files with its PersistentVolumeClaims and their StorageClass, from which the keys and
    sizes are taken.
    """
    documents = [_documents(file) for file in (pod, *more)]
    try:
        written = write_policy(documents[0], [one for several in documents for one in several])
    except CannotWrite as error:
        raise click.ClickException(str(error)) from None
    except (AttributeError, KeyError, TypeError) as error:
        raise click.ClickException(f"a manifest is not what Kubernetes accepts: {error!r}") from None
    click.echo(written.text, nl=False)
    for note in written.notes:
        click.echo(f"Note: {note}", err=True)


def explain(parsed: Policy | PolicyResource) -> list[str]:
    """The lines that say what a policy means."""
    if isinstance(parsed, PolicyResource):
        return [
            f"The policy is the resource {parsed.key_id} of the key broker, which the guest fetches at each "
            "mount. If it is not released or not valid, no volume is mounted."
        ]
    lines = []
    for destination, rules in sorted((parsed.volumes or {}).items()):
        lines += [f"{destination}:", *(f"  - {sentence}" for sentence in _sentences(rules))]
    named = "a volume at any other place is refused." if lines else "no volume is mounted at all."
    others = "".join(f" {place}" for place in sorted(parsed.other_mounts))
    return [
        *lines,
        f"Everything else: {named}",
        "A container that has one of these places mounted, but no volume for it, is refused.",
        *([f"Let through, although they are no volumes:{others}"] if others else []),
        "Opened and closed volumes are measured where the VM can; "
        + (
            "a VM that can't opens none."
            if parsed.agent.measurement is Measurement.REQUIRED
            else "one that can't opens them all the same."
        ),
        "Usage figures: "
        + (
            "the host is told how full each volume is."
            if parsed.agent.usage_figures
            else "kept from the host, and so Kubernetes has none."
        ),
    ]


def _is_initdata(content: bytes) -> bool:
    try:
        return {"algorithm", "data"} <= tomllib.loads(content.decode()).keys()
    except ValueError:
        return False


def _sentences(rules: VolumeRules) -> list[str]:
    sentences = []
    if rules.encryption is Encryption.NONE:
        sentences.append("NOT ENCRYPTED: the host can read and change everything on it")
    else:
        sentences.append(f"encrypted with LUKS2; the key is {rules.key_id}")
    if rules.previous_key_id is not None:
        sentences.append(
            f"a volume under the previous key, {rules.previous_key_id}, is put under the current one; "
            "whoever knows the previous key can forge a volume, so remove it after the rotation"
        )
    if rules.luks_uuid is not None:
        sentences.append(f"only the volume with the LUKS UUID {rules.luks_uuid}")
    if rules.minimum_size:
        sentences.append(f"the disk has at least {rules.minimum_size} bytes ({rounded(rules.minimum_size)})")
    if rules.format is Format.NEVER:
        sentences.append("a blank disk is refused, never formatted")
    else:
        sentences.append(
            "a blank disk is formatted; so the host can make the workload start with an empty one"
        )
    if rules.adopt:
        sentences.append(
            "ADOPTED: a LUKS2 header that this agent did not make is believed if the key opens it; switch it "
            "off after the first start"
        )
    if rules.read_only:
        sentences.append("mounted read-only")
    if rules.fs_group is not None:
        sentences.append(f"its root belongs to group {rules.fs_group}, whatever the host says")
    if rules.discard:
        sentences.append("freed blocks are told to the host, which learns how much is in use and where")
    return sentences


def _documents(file: Path) -> list[dict[str, Any]]:
    try:
        # Only this command needs it; controller and node run without.
        reader = import_module("cli.lint.yaml_reader")
    except ModuleNotFoundError:
        raise click.ClickException("this command needs PyYAML: pip install PyYAML") from None

    def refuse(_rule: str, line: int, message: str) -> None:
        raise click.ClickException(f"{file}:{line}: {message}")

    documents: list[object] = []
    for one in reader.read_documents(file.read_bytes(), str(file), refuse):
        if isinstance(one, dict):
            # As `kubectl get -o yaml` prints several.
            documents += one.get("items") or () if one.get("kind") == "List" else [one]
    return [one for one in documents if isinstance(one, dict)]
