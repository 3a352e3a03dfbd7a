"""For every value of the chart, another one than its default."""

from __future__ import annotations

import json
from typing import Any

_CLOUDS = {"aws", "azure", "libvirt", "local"}
_OF_ONE_CLOUD = {"storageClasses.parameters", "volumeAttributesClass.parameters"}
_UUID = "11111111-2222-3333-4444-555555555555"

#: Value to a provider that has it, and another value than the default.
CHANGED: dict[str, tuple[str, Any]] = {
    "provider": ("local", "local"),
    "image.prefix": ("aws", "registry.example/storage/"),
    "image.tag": ("aws", "9.8.7"),
    "image.pullPolicy": ("aws", "Always"),
    "imagePullSecrets": ("aws", ["pull-secret"]),
    **{
        f"sidecars.{name}": ("aws", f"registry.example/{name}:v9")
        for name in ("provisioner", "attacher", "resizer", "snapshotter", "registrar", "livenessprobe")
    },
    "namespaces.create": ("aws", False),
    "namespaces.controller": ("aws", "storage-controller"),
    "namespaces.node": ("aws", "storage-node"),
    "clusterId": ("aws", "cluster-7"),
    "extraTags": ("aws", {"team": "storage"}),
    "aws.region": ("aws", "eu-central-1"),
    "aws.moreRegions": ("aws", ["eu-west-1"]),
    "aws.zone": ("aws", "eu-central-1b"),
    "aws.roleArn": ("aws", "arn:aws:iam::123456789012:role/volumes"),
    "azure.subscriptionId": ("azure", _UUID),
    "azure.resourceGroup": ("azure", "group-7"),
    "azure.moreResourceGroups": ("azure", ["group-8"]),
    "azure.location": ("azure", "westeurope"),
    "azure.zone": ("azure", "westeurope-2"),
    "azure.endpoint": ("azure", "https://management.example"),
    "azure.clientId": ("azure", _UUID),
    "libvirt.uri": ("libvirt", "qemu+tls://host/system"),
    "libvirt.pool": ("libvirt", "pool-7"),
    "libvirt.directories": ("libvirt", ["/srv/older"]),
    "libvirt.sshSecret": ("libvirt", "ssh-7"),
    "local.claimName": ("local", "claim-7"),
    "logLevel": ("aws", "debug"),
    "logFormat": ("aws", "text"),
    "controller.replicas": ("aws", 5),
    "controller.priorityClassName": ("aws", "priority-7"),
    "controller.env": ("aws", {"AZURE_AUTHORITY_HOST": "https://login.example"}),
    "controller.nodeSelector": ("aws", {"pool": "seven"}),
    "controller.tolerations": ("aws", [{"key": "seven", "operator": "Equal", "value": "eight"}]),
    "controller.resources": ("aws", {"limits": {"memory": "777Mi"}}),
    "node.kubeletRoot": ("aws", "/var/lib/k0s/kubelet"),
    "node.zone": ("aws", "eu-central-1c"),
    "node.directVolumesRoot": ("aws", "/run/kata/direct"),
    "node.podsRoot": ("aws", "/run/other/pods"),
    "node.peerPodHandlers": ("aws", ["kata-seven", "kata-eight"]),
    "node.onePodWithVolumes": ("aws", False),
    "node.priorityClassName": ("aws", "priority-7"),
    "node.seLinuxOptions": ("aws", {"type": "spc_t"}),
    "node.nodeSelector": ("aws", {"pool": "seven"}),
    "node.tolerations": ("aws", [{"key": "seven", "operator": "Equal", "value": "eight"}]),
    "node.resources": ("aws", {"limits": {"memory": "777Mi"}}),
    "snapshots.enabled": ("aws", False),
    "storageClasses.create": ("aws", False),
    "storageClasses.parameters": ("aws", {"awsVolumeType": "io2"}),
    "storageClasses.reclaimPolicy": ("aws", "Retain"),
    "storageClasses.encrypted.name": ("aws", "class-7"),
    "storageClasses.encrypted.keyId": ("aws", "default/volume-key/${pv.name}"),
    "storageClasses.plain.name": ("aws", "class-8"),
    "volumeAttributesClass.enabled": ("aws", True),
    "volumeAttributesClass.name": ("aws", "class-9"),
    "volumeAttributesClass.parameters": ("aws", {"awsIops": "7777"}),
    "openshift.enabled": ("aws", True),
    "admissionPolicies.enabled": ("aws", False),
    "admissionPolicies.moreStorageClasses": ("aws", ["class-7"]),
    "networkPolicies.enabled": ("aws", False),
    "networkPolicies.egressPorts": ("aws", [7777]),
    "networkPolicies.apiServerPorts": ("aws", [7777]),
    "networkPolicies.libvirtPorts": ("libvirt", [7777]),
    "metrics.controller": ("aws", False),
    "metrics.node": ("aws", True),
    "metrics.port": ("aws", 7777),
    "metrics.namespace": ("aws", "watchers-7"),
    "metrics.podMonitor.enabled": ("aws", True),
    "metrics.podMonitor.labels": ("aws", {"release": "seven"}),
    "test.runtimeClassName": ("aws", "kata-seven"),
    "test.storageClassName": ("aws", "class-7"),
    "test.image": ("aws", "registry.example/busybox:7"),
}


def all_changed(provider: str) -> list[str]:
    """``key=value`` of all that can be changed at once, and leaves nothing out of what is rendered."""
    return [
        f"{name}={json.dumps(value)}"
        for name, (own, value) in CHANGED.items()
        if value is not False
        and name.partition(".")[0] not in {"provider", "namespaces", *_CLOUDS - {provider}}
        and (own == provider or name not in _OF_ONE_CLOUD)
    ]
