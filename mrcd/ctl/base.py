"""What all commands of mrcctl share: their options, how they print, and how they fail."""

import errno
import json
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import click

from mrcd.ctl.client import Client, Json
from mrcd.errors import MrcdError, UsageError
from mrcd.versions import SCHEMA_VERSION

F = TypeVar("F", bound=Callable[..., Any])


@dataclass
class Options:
    """What every command takes."""

    run_dir: Path = field(default_factory=lambda: Path(os.environ.get("MRCD_RUN_DIR") or "/run/mrcd"))
    timeout: float = 5.0
    json: bool = False

    @property
    def client(self) -> Client:
        """A client of this host's daemon."""
        return Client(self.run_dir, self.timeout)


class Cli(click.Group):
    """Every way to fail ends in one line, a hint where there is one, and an exit code of ours; never in a traceback."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run, print what went wrong, exit."""
        if "_MRCCTL_COMPLETE" in os.environ:
            from mrcd.ctl import bash_completion

            bash_completion.register()
        try:
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
        except click.Abort:  # what click makes of KeyboardInterrupt outside of invoke
            sys.exit(130)
        except MrcdError as e:
            _complain(e)
        else:
            sys.exit(code if isinstance(code, int) else 0)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; deal with what is not an error of ours."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except KeyboardInterrupt:
            sys.exit(130)  # 128 + SIGINT, as of any other tool
        except OSError as e:
            if e.errno != errno.EPIPE:
                raise MrcdError(f"{e.filename or 'mrcctl'}: {e.strerror}") from None
            # The reader (`| head`) has seen enough. Python's flush at exit must not find the broken pipe again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(141)  # 128 + SIGPIPE
        except (MrcdError, click.exceptions.Exit, click.ClickException, click.Abort):
            raise
        except Exception as e:
            if os.environ.get("MRCD_DEBUG"):
                raise
            raise MrcdError(
                f"internal error: {type(e).__name__}: {e}",
                hint="are mrcctl and mrcd of the same version? MRCD_DEBUG=1 shows where it happened",
            ) from e


def _plain(message: str) -> str:
    """click's message without the words that it has for itself: `a valid integer range` is a whole number."""
    for theirs, ours in (("a valid integer range", "a whole number"), ("a valid float range", "a number")):
        message = message.replace(theirs, ours)
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
    """The options of every command, which may stand before or after its name; the later one counts."""
    for option in (
        click.option("--json", is_flag=True, expose_value=False, callback=_store, help="Print JSON."),
        click.option(
            "--timeout",
            type=click.FloatRange(min=0, max=86_400, min_open=True),
            metavar="SECONDS",
            expose_value=False,
            callback=_store,
            help="How long to wait for mrcd; 5 unless given.",
        ),
        click.option(
            "--run-dir",
            type=click.Path(path_type=Path),
            expose_value=False,
            callback=_store,
            help="Where mrcd's socket is; $MRCD_RUN_DIR or /run/mrcd unless given.",
        ),
    ):
        command = option(command)
    return command


def colours() -> bool:
    """Only for eyes: a terminal whose owner has not asked for none (no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def room(wide: bool = False) -> int | None:
    """Columns of the terminal; None where lines may be as long as they like: no terminal, or --wide."""
    return None if wide or not sys.stdout.isatty() else shutil.get_terminal_size().columns


def emit(options: Options, document: Json, lines: Callable[..., list[str]], **style: Any) -> None:
    """Print a document as JSON, which says its schema's version, or as the text that `lines` makes of it."""
    if options.json:
        if isinstance(document, dict):
            document = {"schema_version": SCHEMA_VERSION} | document
        click.echo(json.dumps(document, indent=2, ensure_ascii=False))
    else:
        # color=True: the decision has been made, click must not make it again.
        click.echo("\n".join(lines(document, **style)), color=True)
