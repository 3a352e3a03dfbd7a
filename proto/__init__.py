"""Wire contracts: the .proto files here, and the Python code generated from them.

``python -m proto.generate`` (run by ``make proto`` and by the wheel's build) writes the
``*_pb2*`` files beside them; they are never edited and never committed.
"""
