"""`rillm info`: what a model is and how this machine would run it."""

from __future__ import annotations

import json

import click

from rillm.cli import loading


@click.command("info")
@click.argument("model", default=loading.DEFAULT_MODEL)
@loading.model_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    model: str, weights: str, activations: str, kv: str, threads: int | None, as_json: bool
) -> None:
    """Show a MODEL's family, shapes and formats, and the ISA and threads chosen for it."""
    with loading.load_model(model, weights, activations, kv, threads) as loaded:
        info = loaded.info()
    if as_json:
        click.echo(json.dumps(info, indent=2, default=str))
        return
    for name, value in rows(info):
        click.echo(f"{name:<17}{value}")


def rows(info: dict) -> list[tuple[str, str]]:
    """The lines to show, a name and a value each."""
    formats = loading.weight_formats(info)
    lines = [
        ("model", info["model"]),
        ("family", info["family"]),
        ("parameters", f"{info['n_parameters'] / 1e6:,.1f} million"),
        ("shapes", ", ".join(f"{name} {value}" for name, value in info["shapes"].items())),
        ("weights", ", ".join(f"{name} {_megabytes(info['weights'][name])}" for name in formats)),
        ("activations", info.get("activations")),
        ("re-encoded", info["reencoded"]),
        ("held wider", info["widened"]),
        ("KV cache", f"{info['kv']}, {info['kv_bytes_per_position']:,} bytes per position"),
        ("bytes per token", _megabytes(info["bytes_per_token"])),
        ("ISA", f"{info['isa']} (available: {', '.join(info['isa_available'])})"),
        ("threads", f"{info['threads']} ({info['threads_why']})"),
        ("huge pages", info["huge_pages"]),
        (
            "skipped tensors",
            ", ".join(f"{count} of {prefix}" for prefix, count in info["skipped"].items()),
        ),
        ("source", info["source"] + ", by its packed copy" * info["packed_copy"]),
    ]
    return [(name, str(value)) for name, value in lines if value]


def _megabytes(n_bytes: int) -> str:
    return f"{n_bytes / 1e6:,.1f} MB"
