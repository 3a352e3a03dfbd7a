"""The lab: real peers for tests and the demo.

A real QEMU guest stands for the PodVM (:mod:`tests.lab.hypervisor`, :mod:`tests.lab.podvm`), and stand-ins
for the Confidential Data Hub (:mod:`tests.lab.cdh`), the key broker (:mod:`tests.lab.kbs`) and the
cloud-api-adaptor (:mod:`tests.lab.caa`). ``tests/lab/setup.sh`` prepares a machine for it.
"""
