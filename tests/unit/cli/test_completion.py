"""``confidential-csi completion``, by the shells' own means where they are installed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from cli.main import main
from tests.tools.driver_process import COMMAND


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_calls_the_command_back(shell: str) -> None:
    result = CliRunner().invoke(main, ["completion", shell], prog_name="confidential-csi")
    assert result.exit_code == 0, result.output
    assert f"_CONFIDENTIAL_CSI_COMPLETE={shell}_complete" in result.output


def test_another_shell_is_a_usage_error() -> None:
    result = CliRunner().invoke(main, ["completion", "tcsh"])
    assert result.exit_code == 2


def test_bash_completes_a_subcommand(tmp_path: Path) -> None:
    program = (
        f'PATH="{Path(COMMAND).parent}:$PATH"\n'
        "source <(confidential-csi completion bash)\n"
        "COMP_WORDS=(confidential-csi pol); COMP_CWORD=1\n"
        "_confidential_csi_completion confidential-csi\n"
        'printf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    finished = subprocess.run(
        ["bash", "--norc", "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert finished.stdout.split() == ["policy"], finished.stderr
