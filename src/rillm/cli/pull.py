"""`rillm pull`: fetch a model now, to run it later without a network."""

from __future__ import annotations

import click

from rillm.cli.progress import progress_bar


@click.command("pull")
@click.argument("name")
def command(name: str) -> None:
    """Fetch NAME and print its path.

    NAME is a known name, owner/name, owner/name:file.gguf, owner/name:Q4_K_M or a URL.
    """
    from rillm.checkpoint import hub

    with progress_bar() as progress:
        path = hub.pull(name, progress)
    click.echo(path)
