"""The CSI plugin: controller and node services, on the untrusted host side."""
