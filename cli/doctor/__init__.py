"""``confidential-csi doctor``: finds what is wrong on a node, in a controller's pod or in a cluster.

``catalog.py`` is the table of checks; each other module is a room of checks that look at one thing.
"""
