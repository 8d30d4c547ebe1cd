"""What the commands share: the options that choose a model, and its way into memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from rillm.cli.progress import progress_bar

if TYPE_CHECKING:
    from rillm.model import Model

DEFAULT_MODEL = "smollm2-135m"


def model_options(command: Callable) -> Callable:
    """--weights, --activations, --kv and --threads."""
    for option in (
        click.option(
            "--threads",
            type=click.IntRange(1),
            metavar="N",
            help="Threads; default: the physical performance cores this process may use.",
        ),
        click.option(
            "--kv",
            default="auto",
            show_default=True,
            metavar="FORMAT",
            help="Format of the KV cache: auto, f32, f16 or q8.",
        ),
        click.option(
            "--activations",
            default="int8",
            show_default=True,
            metavar="FORMAT",
            help="What integer weights meet: int8, or int16, finer but slower with prompts.",
        ),
        click.option(
            "--weights",
            default="auto",
            show_default=True,
            metavar="FORMAT",
            help="Format of the weights in memory: auto, f32, bf16, f16, q8, q4 or q4_64.",
        ),
    ):
        command = option(command)
    return command


def load_model(name: str, weights: str, activations: str, kv: str, threads: int | None) -> Model:
    """Find or fetch a model, with a progress bar, and load it."""
    from rillm.model import Model

    with progress_bar() as progress:
        return Model.from_pretrained(
            name,
            weights=weights,
            activations=activations,
            kv=kv,
            threads=threads,
            progress=progress,
        )


def weight_formats(info: dict) -> list[str]:
    """The formats of a model's weights, those of most bytes first."""
    return sorted(info["weights"], key=info["weights"].__getitem__, reverse=True)
