"""Entry point: the command group, and error messages and exit codes."""

import os
import sys
from importlib import import_module
from typing import Any

import click

from kvfw.errors import KvfwError

COMMANDS = {
    "eval": "kvfw.cli.evaluate",
    "report": "kvfw.cli.report",
    "generate": "kvfw.cli.generate",
    "calibrate": "kvfw.cli.calibrate",
    "list": "kvfw.cli.listing",
    "show": "kvfw.cli.show",
    "models": "kvfw.cli.models",
    "verify": "kvfw.cli.verify",
    "new": "kvfw.cli.new",
    "bench": "kvfw.cli.bench",
    "lm-eval": "kvfw.cli.lm_eval",
}


class LazyGroup(click.Group):
    """Imports a command's module only when the command is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All names, in the order of help."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name."""
        if cmd_name not in COMMANDS:
            return None
        command = import_module(COMMANDS[cmd_name]).command
        assert isinstance(command, click.Command)
        return command


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="kvfw")
def cli() -> None:
    """KV-cache compression of language models: compose methods, evaluate them, trust the numbers.

    \b
    kvfw eval --compose "snapkv:0.8+ewmeans_pre:0.2"
    kvfw list methods
    kvfw show snapkv
    """


def main(arguments: list[str] | None = None) -> None:
    """Runs the command line and exits: 0 success, 1 the run failed or was interrupted, 2 the request was invalid."""
    # Before torch is imported. Idle OpenMP threads spin for milliseconds by default. If another process wants their
    # core, every barrier waits for it (compression was 10 times slower on two busy cores). A short spin costs nothing
    # on an idle machine.
    os.environ.setdefault("GOMP_SPINCOUNT", "3000")
    sys.exit(run(arguments))


def run(arguments: list[str] | None = None) -> int:
    """Runs the command line and returns the exit code. A user's mistake gives no traceback."""
    try:
        result: Any = cli.main(args=arguments, prog_name="kvfw", standalone_mode=False)
    except KvfwError as error:
        click.echo(f"error: {error}", err=True)
        return error.exit_code
    except click.ClickException as error:
        error.show()
        return 2
    except BrokenPipeError:
        # The reader of our output has closed the pipe; files are written already.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        click.echo(f"error: cannot write the output: {error.strerror or error}. Files of a run are safe", err=True)
        return 1
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted", err=True)
        return 1
    return result if isinstance(result, int) else 0
