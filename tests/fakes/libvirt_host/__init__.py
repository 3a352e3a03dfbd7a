"""A libvirt host in memory: storage pools of files, with libvirt's error codes, and faults on demand.

Stricter than the real one: it knows only the calls that the provider needs, and refuses all others.
"""
