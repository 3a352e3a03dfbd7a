"""The ``confidential-csi`` command: roles of the driver and tools for its users."""
