"""``confidential-csi lint``: finds mistakes in manifests, Helm values and volume policies.

What a StorageClass, a capability, a size, a key id or a policy may be is asked of the driver's and the
agent's own code; here is what belongs to manifests alone: lines, and what objects mean for each other.
"""
