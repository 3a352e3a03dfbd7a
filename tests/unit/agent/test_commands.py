"""Running tools: bytes in, bounded waits, no secrets out."""

from __future__ import annotations

import os
import time

import pytest

from agent.commands import SystemRunner
from agent.errors import Unavailable

SECRET = b"\x00\n\xff secret \n"


def test_stdin_reaches_the_tool_byte_for_byte() -> None:
    result = SystemRunner().run(["od", "-An", "-v", "-tx1"], stdin=SECRET)
    assert bytes.fromhex(result.output.replace("\n", "")) == SECRET


def test_a_descriptor_can_be_handed_over() -> None:
    memory = os.memfd_create("test")
    os.write(memory, b"content")
    try:
        assert SystemRunner().run(["cat", f"/proc/self/fd/{memory}"], pass_fds=[memory]).output == "content"
    finally:
        os.close(memory)


def test_a_failure_names_the_tool_its_code_and_its_last_words_but_not_its_input() -> None:
    with pytest.raises(Unavailable) as caught:
        SystemRunner().run(["sh", "-c", "cat >/dev/null; echo why >&2; exit 9"], stdin=SECRET)
    message = str(caught.value)
    assert message == "[tool-failed] sh -c exited with 9: why"


def test_an_expected_code_is_a_result() -> None:
    assert SystemRunner().run(["sh", "-c", "exit 4"], expected=(0, 4)).code == 4


def test_a_message_is_bounded() -> None:
    with pytest.raises(Unavailable) as caught:
        SystemRunner().run(["sh", "-c", "yes | head -c 100000 >&2; exit 1"])
    assert len(str(caught.value)) < 400


def test_a_tool_that_does_not_end_is_killed() -> None:
    start = time.monotonic()
    with pytest.raises(Unavailable, match="tool-timeout"):
        SystemRunner().run(["sleep", "60"], timeout=0.2)
    assert time.monotonic() - start < 30


def test_a_missing_tool_is_named() -> None:
    with pytest.raises(Unavailable, match=r"tool-missing.*no-such-tool"):
        SystemRunner().run(["no-such-tool"])


def test_tools_get_a_small_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_PRELOAD", "")
    monkeypatch.setenv("SOMETHING", "else")
    names = {line.split("=")[0] for line in SystemRunner().run(["env"]).output.splitlines()}
    assert names <= {"PATH", "LC_ALL", "DM_DISABLE_UDEV"}
