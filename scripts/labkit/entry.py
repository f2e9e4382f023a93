# SPDX-License-Identifier: BSD-2-Clause
"""Runs the commands of scripts/demo, demo-training, bench and kernels: exit codes, interrupts, files, own labs."""

import contextlib
import errno
import json
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import click

from labkit.cluster.api import Lab
from mrcd.errors import MachineError, MrcdError, UsageError


def main(name: str, command: click.Command) -> None:
    """Runs a command and exits: 0 ok, 1 unmet requirement or wrong usage, 2 machine. Prints no traceback."""
    for signum in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, _interrupt)
    try:
        sys.exit(command.main(prog_name=name, standalone_mode=False) or 0)
    except (click.exceptions.Abort, KeyboardInterrupt):
        _die(name, "interrupted", 130)
    except click.exceptions.NoArgsIsHelpError as e:
        print(e.format_message(), file=sys.stderr)
        sys.exit(1)
    except click.ClickException as e:
        _die(name, f"{e.format_message()}\n  hint: {name} --help", 1)
    except MrcdError as e:
        _die(name, str(e), e.exit_code)
    except BrokenPipeError:  # the reader of stdout has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except OSError as e:
        _die(name, str(e), 2)


def _interrupt(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _die(name: str, message: str, code: int) -> None:
    print(f"{name}: {message}", file=sys.stderr)
    sys.exit(code)


def progress(message: str) -> None:
    """Prints a line on stderr."""
    print(message, file=sys.stderr, flush=True)


def print_json(document: Any) -> None:
    """Prints one document on stdout."""
    print(json.dumps(document, indent=2, ensure_ascii=False))


@contextlib.contextmanager
def _writing(place: Path, directory: Path) -> Iterator[None]:
    """A block that writes into a directory, which is made if it is missing. Raises MachineError about `place`."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as e:
        raise MachineError(f"{place}: {e.strerror}", hint="choose another directory; see --help") from None


def save(path: Path, content: str) -> None:
    """Writes a picture or a document. Raises MachineError."""
    with _writing(path, path.parent):
        path.write_text(content, encoding="utf-8")


def check_writable(directory: Path) -> None:
    """Makes a directory if it is missing, so that a long run fails early if it cannot be saved.

    Raises MachineError.
    """
    with _writing(directory, directory), tempfile.TemporaryFile(dir=directory):
        pass


def relative(path: Path) -> Path:
    """Returns a path as a message shows it: relative to the working directory, if it is inside."""
    try:
        return path.resolve().relative_to(Path.cwd())
    except ValueError:
        return path


@contextlib.contextmanager
def own_lab(name: str, *, keep: bool = False) -> Iterator[Lab]:
    """A block with a lab of this program's own: removed before, if one is left, and removed after.

    Raises UsageError if another run uses it.
    """
    with alone(name):
        lab = Lab(name, progress)
        if lab.state.root.exists() or lab.state.namespaces():
            lab.down()
        try:
            yield lab
        finally:
            if not keep:
                with _undisturbed():
                    lab.down()


@contextlib.contextmanager
def alone(name: str) -> Iterator[None]:
    """A block in which no other run uses the lab of that name. Raises UsageError if one does.

    The lock is an abstract socket: its name is unique, and it ends with this process in every case.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as s:
        try:
            s.bind(f"\0mrcd-lab-{name}")
        except OSError as e:
            if e.errno != errno.EADDRINUSE:
                raise
            raise UsageError(
                f"another run uses lab {name}", hint="wait for its end, or choose another --name"
            ) from None
        yield


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """A block that further Ctrl-C presses do not interrupt."""
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {s: signal.signal(s, signal.SIG_IGN) for s in signals}
    try:
        yield
    finally:
        for s, handler in before.items():
            signal.signal(s, handler)
