"""Generate Python code and type stubs from the .proto files in this folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent

#: File name to whether it holds gRPC services (ttrpc services need only messages).
CONTRACTS = {
    "csi.proto": True,
    "aa.proto": False,
    "agent.proto": False,
    "cdh.proto": False,
    "ttrpc.proto": False,
}


def generate() -> None:
    """Write ``*_pb2.py``, ``*_pb2.pyi`` and, for gRPC services, ``*_pb2_grpc.py`` beside the contracts."""
    # The stub generators are protoc plug-ins, installed beside the interpreter and found on PATH.
    search_path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    for name, has_grpc_services in CONTRACTS.items():
        outputs = ["--python_out=.", "--mypy_out=quiet:."]
        if has_grpc_services:
            outputs += ["--grpc_python_out=.", "--mypy_grpc_out=quiet:."]
        subprocess.run(
            [sys.executable, "-m", "grpc_tools.protoc", "-I.", *outputs, f"proto/{name}"],
            cwd=HERE.parent,
            env={**os.environ, "PATH": search_path},
            check=True,
        )


if __name__ == "__main__":
    generate()
