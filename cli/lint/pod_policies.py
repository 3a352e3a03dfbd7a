"""What the guest's policy will say to a pod's volumes: the one in the pod's initdata, or the built-in one."""

from __future__ import annotations

from agent.annotation import CloudVolume
from agent.errors import Refused
from agent.initdata import decode_initdata
from agent.mount_point import checked_mount_point
from agent.policy import DEFAULT_POLICY, Policy, rules_for
from agent.policy_schema import parse_policy
from agent.policy_source import POLICY_FILE
from cli.lint.cluster import Claim
from cli.lint.context import Context
from cli.lint.located import Block, block_at, text_at
from cli.lint.pod_templates import PodTemplate, mounts_of
from cli.lint.policies import INITDATA_ANNOTATIONS
from cli.lint.storage_classes import ClassFacts, class_facts
from driver.capabilities import DEFAULT_FS_TYPE
from driver.encryption import ENCRYPT_TYPE
from driver.errors import InvalidArgument
from driver.key_path import expand_key_path


def check_pod_policy(context: Context, template: PodTemplate, volumes: dict[str, Claim]) -> None:
    """Whether the guest will mount each volume where the pod wants it."""
    policy = _policy(block_at(template.pod, "metadata", "annotations"))
    if policy is None:
        return
    for mount in mounts_of(template, volumes):
        name = text_at(mount, "name")
        storage_class = context.cluster.class_of(volumes[name])
        if storage_class is None or context.report.has_error(storage_class.subject, storage_class.file):
            continue
        facts = class_facts(context, storage_class)
        try:
            destination = checked_mount_point(text_at(mount, "mountPath"), name)
        except Refused:
            continue  # a rule of its own
        try:
            rules_for(policy, [_volume(destination, facts, volumes[name], policy)])
        except Refused as refused:
            message = refused.message.replace("vol-0", f"volume {name!r}")
            rule = "policy-refuses"
            if policy is DEFAULT_POLICY:
                # Another policy may be in the image.
                rule = "plain-volume"
                message = (
                    f"volume {name!r} is of StorageClass {storage_class.name!r}, which does not encrypt, and "
                    f"no policy here lets it be mounted at {destination}"
                )
            context.note_at(rule, template.manifest, mount, "mountPath", message)


def _policy(annotations: Block) -> Policy | None:
    """None if nothing here tells: the policy is broken, which is reported already, or elsewhere."""
    for key in INITDATA_ANNOTATIONS:
        value = annotations.get(key)
        if not isinstance(value, str):
            continue
        try:
            text = decode_initdata(value.encode()).files.get(POLICY_FILE)
            parsed = DEFAULT_POLICY if text is None else parse_policy(text)
        except Refused:
            return None
        return parsed if isinstance(parsed, Policy) else None
    return DEFAULT_POLICY


def _volume(destination: str, facts: ClassFacts, claim: Claim, policy: Policy) -> CloudVolume:
    """The volume as the host will describe it to the guest."""
    return CloudVolume(
        index=0,
        mount_point=destination,
        fs_type=facts.fs_type or DEFAULT_FS_TYPE,
        lun=None,
        disk_id="",
        fs_group=None,
        encrypt_type=facts.parameters.get(ENCRYPT_TYPE, ""),
        key_id=_key_id(destination, facts, claim, policy) if facts.encrypted else "",
    )


def _key_id(destination: str, facts: ClassFacts, claim: Claim, policy: Policy) -> str:
    """The key of the volume; where nothing tells it yet, the one that the policy wants."""
    names = {
        "pvc/namespace": claim.manifest.namespace,
        "pvc/name": "" if claim.is_template else claim.manifest.name,
        "pv/name": text_at(claim.spec, "volumeName"),
    }
    copied = claim.spec.get("dataSource") or claim.spec.get("dataSourceRef")
    try:
        if not copied:
            return expand_key_path(facts.key_id, names)
    except InvalidArgument:
        pass
    rules = (policy.volumes or {}).get(destination)
    return (rules.key_id if rules is not None else None) or facts.key_id
