"""Azure Resource Manager's disks and snapshots, stricter than the real one."""
