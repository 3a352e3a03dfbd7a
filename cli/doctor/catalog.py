"""The table of checks, in the order in which they run. ``docs/doctor.md`` lists them all."""

from __future__ import annotations

from typing import Final

from cli.doctor import claims, cloud, cluster, disks, node, records, sockets, stale
from cli.doctor.model import Check

CHECKS: Final[tuple[Check, ...]] = (
    # This machine, if it is a node or a container of the driver.
    Check(
        "csi-socket",
        "the driver's socket is there, the driver answers on it and is ready",
        sockets.csi_socket,
    ),
    Check(
        "plugin-version",
        "the driver on the socket and this command are of one version",
        sockets.plugin_version,
    ),
    Check("kubelet-root", "kubelet's root directory is the configured one", node.kubelet_root),
    Check("hypervisor-socket", "cloud-api-adaptor listens on its socket", sockets.hypervisor_socket),
    Check("kata-config", "Kata's remote hypervisor asks on that socket", node.kata_config),
    Check("direct-volumes-root", "Kata's directory of volumes is there, and the host's own", records.root),
    Check("direct-volumes-owner", "that directory is root's, and only root writes to it", records.root_owner),
    Check("direct-volumes-entries", "nothing stands in it but records of volumes", records.root_entries),
    Check(
        "record-damaged",
        "each record (mountInfo.json) can be read by Kata and cloud-api-adaptor",
        records.damaged,
    ),
    Check("record-metadata", "all metadata of each record is text", records.metadata_types),
    Check("record-stray-file", "beside a record stand only Kata's notes of sandboxes", records.stray_files),
    Check("record-mode", "each record is root's, and only root writes to it", records.modes),
    Check("record-device", "no record names a device of this node, no two name one disk", records.devices),
    Check("record-stale", "each record belongs to a pod that kubelet has", stale.stale_records),
    Check("records-of-two-pods", "one pod with volumes on this node at a time", records.several_pods),
    # The cluster.
    Check("cluster-api", "the Kubernetes API answers", cluster.api),
    Check("cluster-clock", "the clock here and the API server's agree", cloud.api_clock),
    Check("csi-driver", "the CSIDriver object says what the driver needs", cluster.csi_driver),
    Check("workloads", "controller and node plugin run", cluster.workloads),
    Check("image-versions", "controller and node plugin are of one version", cluster.versions),
    Check(
        "registration", "kubelet of each node with the node plugin knows the driver", cluster.registrations
    ),
    Check("runtime-class", "there is a RuntimeClass of peer pods", cluster.runtime_class),
    Check("caa-volumes", "cloud-api-adaptor runs and sees the direct volumes", cluster.caa_volumes),
    Check("plaintext-volume", "no volume is unencrypted whose class speaks of encryption", claims.plaintext),
    Check("not-a-peer-pod", "each pod that uses a volume is a peer pod", claims.peer_pods),
    Check("two-pods-on-a-node", "no two pods with volumes are on one node", claims.two_pods),
    Check("attachment-error", "no VolumeAttachment tells of an error", claims.attachment_errors),
    # The cloud.
    Check("cloud-access", "the provider is set up, and its backend answers", cloud.access),
    Check("cloud-identity", "the cloud accepts the credentials", cloud.identity),
    Check("cloud-permissions", "the cloud allows all that the driver does", cloud.permissions),
    Check("cloud-clock", "the clock here and the cloud's agree", cloud.cloud_clock),
    # Both.
    Check("pv-without-volume", "each PersistentVolume has its disk", disks.without_volume),
    Check("volume-without-pv", "each disk has its PersistentVolume", disks.without_claim),
    Check("fence-closed", "no machine keeps a disk that no pod uses", disks.fence),
)
