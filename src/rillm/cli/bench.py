"""`rillm bench`: tokens per second beside what this machine's memory allows."""

from __future__ import annotations

import json
from collections.abc import Callable

import click

from rillm.cli import loading


def _count(name: str, least: int, default: int, help: str) -> Callable:
    options = {"default": default, "show_default": True, "metavar": "N", "help": help}
    return click.option(name, type=click.IntRange(least), **options)


@click.command("bench")
@click.argument("model", default=loading.DEFAULT_MODEL)
@loading.model_options
@_count("--tokens", 1, 128, "Decoded a round.")
@_count("--depth", 0, 0, "Positions held before.")
@_count("--prefill", 0, 512, "Tokens of the prompt; 0: none.")
@_count("--rounds", 1, 3, "Medians are over all of them.")
@click.option("--stages", is_flag=True, help="Print what each stage of a step takes.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    model, weights, activations, kv, threads, tokens, depth, prefill, rounds, stages, as_json
) -> None:
    """Time decoding and prefill of a MODEL, and the memory's read speed before and after."""
    from rillm.suite.decode import measure

    with loading.load_model(model, weights, activations, kv, threads) as loaded:
        result = measure(loaded, n_tokens=tokens, depth=depth, n_prefill=prefill, rounds=rounds)
    if as_json:
        click.echo(json.dumps(result))
        return
    before, after = result["roof_gigabytes_per_second"]
    formats = "+".join(loading.weight_formats(result))
    click.echo(
        f"{result['decode_tokens_per_second']:.1f} tokens/s decoding at depth {depth}, "
        f"{result['gigabytes_per_second']:.1f} GB/s, {result['roof_share']:.0%} of the roof "
        f"({before:.1f} GB/s before, {after:.1f} after)"
    )
    if prefill:
        rate = result["prefill_tokens_per_second"]
        click.echo(f"{rate:.1f} tokens/s prefill of {prefill}")
    if stages:
        for name, microseconds in result["stage_microseconds"].items():
            rate = result["stage_bytes"].get(name, 0) / microseconds / 1e3 if microseconds else 0
            click.echo(
                f"{name:<8}{microseconds:10.1f} µs a step" + (f"{rate:7.1f} GB/s" if rate else "")
            )
    click.echo(
        f"weights {formats}, kv {result['kv']}, {result['isa']}, {result['threads']} threads"
    )
