"""Build hooks: generated protobuf code, and the chart's schema for lint (metadata is in pyproject.toml)."""

import subprocess
import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

HERE = Path(__file__).parent
SCHEMA = "values.schema.json"


class Build(build_py):
    """``build_py`` that generates the code of ``proto/`` and puts the chart's schema beside its reader."""

    def run(self) -> None:
        subprocess.run([sys.executable, "-m", "proto.generate"], cwd=HERE, check=True)
        super().run()
        if not self.editable_mode:  # in a clone the chart's own file is read
            chart = HERE / "deploy" / "charts" / "confidential-csi"
            self.copy_file(str(chart / SCHEMA), str(Path(self.build_lib) / "cli" / "lint" / SCHEMA))


setup(cmdclass={"build_py": Build})
