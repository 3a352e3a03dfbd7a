"""``confidential-csi key``: makes volume keys, for the key broker and for nobody else."""

from __future__ import annotations

import os
import shlex
import stat
from typing import Final
from urllib.parse import urlsplit

import click

from agent.errors import Refused
from agent.keys import MIN_KEY, key_uri

_OUTPUT: Final = 1
_AUTHORIZATION_FILE: Final = "kbs-admin.header"
_LOCAL_HOSTS: Final = frozenset({"localhost", "127.0.0.1", "::1"})


@click.group()
def key() -> None:
    """Make keys of volumes."""


@key.command(short_help="Make a key and write it to a pipe.")
@click.argument("key_id")
@click.option("--kbs-url", required=True, help="Where the key broker's HTTP API is, as https://host[:port].")
def new(key_id: str, kbs_url: str) -> None:
    """Make a key for KEY_ID (repository/type/tag) and write it, 32 raw bytes, to a pipe.

    Run it on a trusted machine. Without a pipe no key is made: the command line that makes one and uploads
    it is shown instead. The key is stored nowhere here.
    """
    try:
        key_uri(key_id)
    except Refused as refused:
        raise click.ClickException(str(refused)) from None
    upload = _upload_command(key_id, kbs_url)
    if _in_the_clear(kbs_url):
        click.echo("With http the key crosses the network in the clear; use https or a tunnel.", err=True)
    if not _is_pipe(_OUTPUT):
        make = shlex.join(["confidential-csi", "key", "new", key_id, "--kbs-url", kbs_url])
        click.echo(_instructions(f"{make} \\\n  | {upload}"), err=True)
        raise click.ClickException("standard output is not a pipe: no key was made, nothing was written")
    click.echo(f"A new key for {key_id} goes to the pipe. The request that stores it:\n  {upload}", err=True)
    try:
        _write(_OUTPUT, os.urandom(MIN_KEY))
    except BrokenPipeError:
        raise click.ClickException(
            "the other end of the pipe went away before it took the key; see its error, then make a new key"
        ) from None


def _upload_command(key_id: str, kbs_url: str) -> str:
    """curl, with the key from its standard input and the token from a file: neither is an argument."""
    try:
        parts = urlsplit(kbs_url)
        valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # a bracket without its other half, a port that is no number
        valid = False
    if not valid or parts.query or parts.fragment or not kbs_url.isprintable() or " " in kbs_url:
        raise click.ClickException("--kbs-url is not of the form https://host[:port]")
    if "@" in parts.netloc:
        raise click.ClickException("--kbs-url holds a user or password; leave it out, the token is in a file")
    url = f"{kbs_url.rstrip('/')}/kbs/v0/resource/{key_id}"
    return shlex.join(
        [
            *("curl", "--fail-with-body", "--silent", "--show-error", "--request", "POST"),
            *("--header", f"@{_AUTHORIZATION_FILE}"),
            *("--header", "Content-Type: application/octet-stream"),
            *("--data-binary", "@-", url),
        ]
    )


def _in_the_clear(kbs_url: str) -> bool:
    parts = urlsplit(kbs_url)
    return parts.scheme == "http" and parts.hostname not in _LOCAL_HOSTS


def _instructions(pipeline: str) -> str:
    lines = [
        "Make the key and store it in one go:",
        "",
        f"  {pipeline}",
        "",
        f"{_AUTHORIZATION_FILE} is a file of yours (mode 0600) with one line:",
        "  Authorization: Bearer <the key broker's admin token>",
        "A key that is stored there already is replaced, and its volumes do not open any more.",
        "No copy is kept, and a rotation or a recovery needs one: docs/keys.md puts one aside first.",
    ]
    return "\n".join(lines)


def _is_pipe(descriptor: int) -> bool:
    """A terminal would show the key, a file would keep it."""
    try:
        mode = os.fstat(descriptor).st_mode
    except OSError:  # closed
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


def _write(descriptor: int, data: bytes) -> None:
    # Not through sys.stdout: its buffer would keep a copy, and could fail after the command has ended.
    while data:
        data = data[os.write(descriptor, data) :]
