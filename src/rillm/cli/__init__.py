"""The command `rillm`, one file a command; an error is one line, unless RILLM_DEBUG=1."""

from __future__ import annotations

import os
import signal

import click

from rillm.cli import bench, cache, generate, info, pull
from rillm.errors import RillmError


class _Commands(click.Group):
    def invoke(self, ctx: click.Context):
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as interrupt:  # its arguments say how far the command came
            click.echo(" ".join(["rillm: interrupted", *interrupt.args]), err=True)
            ctx.exit(128 + signal.SIGINT)  # as a shell reports it
        except BrokenPipeError:  # the reader went away: click ends quietly
            raise
        except (RillmError, ValueError, OSError) as error:
            if os.environ.get("RILLM_DEBUG") == "1":
                raise
            words = " ".join(str(error).split()) or type(error).__name__
            click.echo(f"rillm: {words}", err=True)
            ctx.exit(1)


def _print_version(ctx: click.Context, _option: click.Option, wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        click.echo(f"rillm {version('rillm')}")
        ctx.exit()


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version and exit.",
)
def main() -> None:
    """Decode language models on the CPU you have."""


for _module in (bench, cache, generate, info, pull):
    main.add_command(_module.command)
