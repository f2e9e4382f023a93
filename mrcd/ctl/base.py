# SPDX-License-Identifier: BSD-2-Clause
"""Defines the options, the output and the error handling that all commands of mrcctl share."""

import contextlib
import errno
import importlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import click

from mrcd.clock import SYSTEM, Clock
from mrcd.ctl.client import Client, Json
from mrcd.errors import MrcdError, UsageError
from mrcd.versions import SCHEMA_VERSION

F = TypeVar("F", bound=Callable[..., Any])


@dataclass
class Options:
    """The options of every command."""

    run_dir: Path = field(default_factory=lambda: Path(os.environ.get("MRCD_RUN_DIR") or "/run/mrcd"))
    timeout: float | None = None  # seconds; None: as long as the request needs
    json: bool = False
    clock: Clock = SYSTEM
    view: Any = None  # mrcd.view.documents.View of the pinned tables, once something was read there

    def monotonic_s(self) -> float:
        """Return the seconds of CLOCK_MONOTONIC."""
        return self.clock.monotonic_ns() / 1e9

    def now(self) -> datetime:
        """Return the present UTC time."""
        return datetime.fromtimestamp(self.clock.wall_ns() / 1e9, UTC)

    @property
    def client(self) -> Client:
        """Return a client of this host's daemon."""
        return Client(self.run_dir, self.timeout, self.clock)


class Commands(click.Group):
    """A group whose commands may be abbreviated, as those of ip(8), while only one begins so."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of this name, or the only one that begins with it. Raises UsageError if several do."""
        found = super().get_command(ctx, cmd_name)
        if found is not None or not cmd_name:
            return found
        names = [name for name in self.list_commands(ctx) if name.startswith(cmd_name)]
        if len(names) > 1 and ctx.resilient_parsing:  # a shell completes the line
            return None
        if len(names) > 1:
            ctx.fail(f"{cmd_name!r} is ambiguous: {', '.join(names)}")
        return self.get_command(ctx, names[0]) if names else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the whole name of the command, the command and its arguments."""
        _, command, rest = super().resolve_command(ctx, args)
        return command.name if command else None, command, rest


class Cli(Commands):
    """A command group that reports every failure as one line, a hint and an exit status, never as a traceback.

    `modules` names the commands of each module of mrcd.ctl.commands, where functions have the names of their commands.
    A module is imported when one of its commands is looked up: to import all takes longer than most commands do.
    """

    def __init__(self, *args: Any, modules: Mapping[str, Iterable[str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._module_of = {command: module for module, commands in modules.items() for command in commands}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands, sorted."""
        return sorted({*self.commands, *self._module_of})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command, as Commands does."""
        if cmd_name in self._module_of and cmd_name not in self.commands:
            module = importlib.import_module(f"mrcd.ctl.commands.{self._module_of[cmd_name]}")
            self.add_command(getattr(module, cmd_name), cmd_name)
        return super().get_command(ctx, cmd_name)

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run the command, print its error, exit."""
        try:
            if "_MRCCTL_COMPLETE" in os.environ:
                from mrcd.ctl.commands import completion

                completion.register()
            kwargs["standalone_mode"] = False
            code = super().main(*args, **kwargs)
        except click.exceptions.NoArgsIsHelpError as e:
            click.echo(e.format_message(), err=True)
            sys.exit(UsageError.exit_code)
        except click.UsageError as e:
            command = e.ctx.command_path if e.ctx else "mrcctl"
            _complain(UsageError(_plain(e.format_message()), hint=f"see `{command} --help`"))
        except click.ClickException as e:
            _complain(UsageError(e.format_message()))
        except (click.Abort, KeyboardInterrupt):  # ^C outside of invoke
            sys.exit(130)
        except MrcdError as e:
            _complain(e)
        else:
            sys.exit(code if isinstance(code, int) else 0)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; turn all other exceptions into MrcdError or an exit status."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except KeyboardInterrupt:
            sys.exit(130)  # 128 + SIGINT, as other tools do
        except OSError as e:
            if (
                e.filename is None
            ):  # redirect stdout, or Python's flush at exit meets a broken pipe or a full disk again
                with contextlib.suppress(OSError, ValueError):
                    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            if e.errno == errno.EPIPE:  # the reader (`| head`) has gone
                sys.exit(141)  # 128 + SIGPIPE
            raise MrcdError(f"{e.filename}: {e.strerror}" if e.filename else str(e.strerror or e)) from None
        except (MrcdError, click.exceptions.Exit, click.ClickException, click.Abort):
            raise
        except Exception as e:
            if os.environ.get("MRCD_DEBUG"):
                raise
            raise MrcdError(
                f"internal error: {type(e).__name__}: {e}",
                hint="compare the versions with `mrcctl version`; MRCD_DEBUG=1 shows the traceback",
            ) from e


def _plain(message: str) -> str:
    """Return click's message with plain words for its types: `a valid integer range` becomes a whole number."""
    for click_words, plain_words in (
        ("a valid integer range", "a whole number"),
        ("a valid integer", "a whole number"),
        ("a valid float range", "a number"),
    ):
        message = message.replace(click_words, plain_words)
    return message.rstrip(".")


def _complain(error: MrcdError) -> None:
    click.echo(f"mrcctl: {error}", err=True)
    sys.exit(error.exit_code)


# ---- options and output ----------------------------------------------------------------------


def _store(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    options = ctx.ensure_object(Options)
    if value is not None and value is not False and param.name:
        setattr(options, param.name, value)


def common(command: F) -> F:
    """Add the options of every command. They may stand before or after its name; the later one counts."""
    for option in (
        click.option("--json", is_flag=True, expose_value=False, callback=_store, help="Print JSON."),
        click.option(
            "--timeout",
            type=click.FloatRange(min=0, max=86_400, min_open=True),
            metavar="SECONDS",
            expose_value=False,
            callback=_store,
            help="Wait at most so long for an answer of mrcd; default 5, of attach and reload 30.",
        ),
        click.option(
            "--run-dir",
            type=click.Path(path_type=Path),
            expose_value=False,
            callback=_store,
            help="Directory of mrcd's socket; default $MRCD_RUN_DIR or /run/mrcd.",
        ),
    ):
        command = option(command)
    return command


def command(
    short_help: str | None = None,
    *,
    group: click.Group | None = None,
    epilog: str | None = None,
) -> Callable[[Callable[..., Any]], click.Command]:
    """Make a command that gets the Options, and has the options of every command after its own."""

    def make(function: Callable[..., Any]) -> click.Command:
        own = function.__dict__.pop("__click_params__", [])
        common(function)
        function.__dict__["__click_params__"] += own
        made = (group.command if group else click.command)(short_help=short_help, epilog=epilog)
        return made(click.pass_obj(function))

    return make


def colours() -> bool:
    """Return whether to colour the output: a terminal, and neither NO_COLOR (no-color.org) nor TERM=dumb."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def terminal_width(wide: bool = False) -> int | None:
    """Return the terminal's columns; None without a limit, that is without a terminal or with --wide."""
    return None if wide or not sys.stdout.isatty() else shutil.get_terminal_size().columns


def emit(options: Options, document: Json, lines: Callable[..., list[str]], **style: Any) -> None:
    """Print a document as JSON with its schema version, or as the text that `lines` makes of it."""
    if options.json:
        if isinstance(document, dict):
            document = {"schema_version": SCHEMA_VERSION} | document
        click.echo(json.dumps(document, indent=2, ensure_ascii=False))
    else:
        # color=True: `lines` has already decided about colours; click must not remove them.
        click.echo("\n".join(lines(document, **style)), color=True)


def show(options: Options, document: Json, lines: Callable[..., list[str]], wide: bool = False, **style: Any) -> None:
    """Print a document as `emit` does, with `lines` in colour and as wide as the terminal."""
    emit(options, document, lines, colour=colours(), width=terminal_width(wide), **style)
