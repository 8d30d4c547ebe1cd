"""`rillm cache`: packed copies of models, which load faster than the models themselves."""

from __future__ import annotations

import json
import os
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rillm.cli.progress import progress_bar

if TYPE_CHECKING:
    from rillm.weights.copies import Copy

MAX_BYTES = 20_000_000_000


@click.group("cache")
def command() -> None:
    """Keep packed copies of models: written on request, used whenever the model is loaded."""


@command.command("add")
@click.argument("model")
@click.option(
    "--weights",
    default="auto",
    show_default=True,
    metavar="FORMAT",
    help="Format of the weights in memory, as when the model is loaded.",
)
@click.option(
    "--max-bytes",
    type=click.IntRange(0),
    default=MAX_BYTES,
    show_default=True,
    metavar="N",
    help="Of all copies together; those not used for longest make room.",
)
def add(model: str, weights: str, max_bytes: int) -> None:
    """Write the packed copy of MODEL."""
    from rillm.checkpoint import hub
    from rillm.weights import copies

    with progress_bar() as progress:
        path = hub.find(model, progress)
    copy, removed = copies.add(path, weights, max_bytes)
    _say_removed(removed)
    click.echo(copy.path)


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
def list_copies(as_json: bool) -> None:
    """Show the packed copies, the one used last first."""
    from rillm.weights import copies

    found = copies.copies()
    if as_json:
        click.echo(json.dumps([vars(copy) for copy in found], indent=2, default=str))
        return
    for copy in found:
        click.echo(_line(copy))


@command.command("clear")
@click.argument("model", required=False)
def clear(model: str | None) -> None:
    """Remove the packed copies of MODEL, or all."""
    from rillm.checkpoint import hub
    from rillm.weights import copies

    path = None if model is None else Path(os.path.expanduser(model)).resolve()
    if path and not any(copy.model == path for copy in copies.copies()):  # a name, or no copy
        path = hub.find_here(model) or path
    _say_removed(copies.clear(path))


def _say_removed(removed: list[Copy]) -> None:
    for copy in removed:
        click.echo(f"removed {_line(copy)}", err=True)


def _line(copy: Copy) -> str:
    used = datetime.fromtimestamp(copy.used).strftime("%Y-%m-%d %H:%M")
    what = "damaged" if copy.model is None else f"{copy.weights} of {copy.model}"
    gone = copy.model is not None and not copy.model.exists()
    return f"{copy.n_bytes / 1e6:,.1f} MB, used {used}, {what}{' (gone)' * gone}"
