"""Build hook: the protobuf code is generated as part of every build (metadata is in pyproject.toml)."""

import subprocess
import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithProtobuf(build_py):
    """``build_py`` that first generates the code of ``proto/``."""

    def run(self) -> None:
        subprocess.run([sys.executable, "-m", "proto.generate"], cwd=Path(__file__).parent, check=True)
        super().run()


setup(cmdclass={"build_py": BuildWithProtobuf})
