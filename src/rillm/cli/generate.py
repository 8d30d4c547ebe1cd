"""`rillm generate`: a prompt in, text out as it is decoded, and one line of figures on stderr."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from rillm.cli import loading

if TYPE_CHECKING:
    from rillm.decoding.loop import Piece, Result
    from rillm.model import Model

_LIMITS = {
    "max_new_tokens": " (cut off: --max-new-tokens allows more)",
    "context": " (cut off: the context is full)",
}


@click.command("generate")
@click.argument("prompt", required=False)
@click.option(
    "--model",
    default=loading.DEFAULT_MODEL,
    show_default=True,
    metavar="MODEL",
    help="A folder, a .gguf file, a known name, owner/name or a URL.",
)
@loading.model_options
@click.option(
    "--max-new-tokens",
    "--max-tokens",
    type=int,
    default=1024,
    show_default=True,
    metavar="N",
    help="Stop after N tokens, and say so.",
)
@click.option("--temperature", type=float, metavar="T", help="0 takes the likeliest token.")
@click.option("--top-k", type=int, metavar="K", help="Sample among the K likeliest tokens.")
@click.option("--top-p", type=float, metavar="P", help="Sample among the likeliest, P in all.")
@click.option("--seed", type=int, metavar="SEED", help="The same seed gives the same text.")
@click.option(
    "--option",
    "-o",
    "more",
    multiple=True,
    metavar="NAME=VALUE",
    help="Any option of the loop, such as min_p=0.05; VALUE is JSON or text.",
)
@click.option("--raw", is_flag=True, help="Do not put the prompt into the chat template.")
@click.option("--trace", is_flag=True, help="Show each step: what could have come, what, and why.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object, at the end; a line a step too."
)
def command(
    prompt: str | None,
    model: str,
    weights: str,
    activations: str,
    kv: str,
    threads: int | None,
    raw: bool,
    trace: bool,
    as_json: bool,
    more: tuple[str, ...],
    **options: Any,
) -> None:
    """Continue PROMPT, or the text on standard input.

    A model with a chat template is asked PROMPT as a question, unless --raw is given. The text ends
    where the model ends it, at --max-new-tokens, or where the context is full.
    """
    from rillm.decoding.loop import collect

    options |= _more_options(options, more)
    _check_options(options)
    if prompt is None or prompt == "-":
        prompt = _standard_input()
    else:
        prompt = _text(prompt.encode(errors="surrogateescape"), "the prompt")
    if not prompt:
        raise click.UsageError("the prompt is empty: give it as an argument or on standard input")
    with loading.load_model(model, weights, activations, kv, threads) as loaded:
        ids = prompt_ids(loaded, prompt, raw)
        on_step = _step_printer(as_json) if trace else None
        stream = loaded.stream(ids, on_step=on_step, **options)
        pieces, interrupted = _show(stream, quiet=as_json or trace)
        info = loaded.info()
    result = collect(pieces)
    if interrupted:
        result = replace(result, timings=stream.timings)
    if as_json:
        click.echo(json.dumps(_record(result, info)))
    if interrupted:
        raise KeyboardInterrupt(f"after {_summary(result, info)}")
    if not as_json:
        click.echo(_summary(result, info), err=True)


def prompt_ids(model: Model, prompt: str, raw: bool) -> list[int]:
    """The tokens of a prompt: through the chat template, which writes its own special tokens."""
    if raw or model.chat_template is None:
        return model.encode(prompt)
    from rillm.chat.template import render

    tokenizer = model.tokenizer
    text = render(
        model.chat_template,
        [{"role": "user", "content": prompt}],
        bos_token=tokenizer.bos_token,
        eos_token=tokenizer.eos_token,
    )
    return tokenizer.encode(text, add_special_tokens=False)


def _check_options(options: dict[str, Any]) -> None:
    """Refuse what the model would refuse, before it is fetched and loaded."""
    from rillm.decoding.sampling import Sampling

    try:
        sampling = Sampling.from_options({}, options)
    except (TypeError, ValueError) as error:
        raise click.UsageError(str(error)) from error
    if sampling.n > 1:
        raise click.UsageError("n is for Python: this command prints one completion")


def _more_options(options: dict[str, Any], more: tuple[str, ...]) -> dict[str, Any]:
    """What --option says, each by its own name, and none of them said twice."""
    from rillm.decoding.options import ALIASES

    source = click.get_current_context().get_parameter_source
    given: dict[str, Any] = {}
    for name, value in map(_named_value, more):
        name = ALIASES.get(name, name)
        has_flag = name in options and source(name) is not ParameterSource.DEFAULT
        if has_flag or name in given:
            raise click.UsageError(f"{name} is given twice")
        given[name] = value
    return given


def _named_value(option: str) -> tuple[str, Any]:
    name, sign, value = option.partition("=")
    if not sign:
        raise click.UsageError(f"--option {option}: expected NAME=VALUE")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _step_printer(as_json: bool):
    from rillm.cli.trace import block, json_line

    return lambda step: click.echo(json_line(step) if as_json else block(step))


def _standard_input() -> str:
    """All of it, without the newline that ends a text file's last line."""
    if sys.stdin is None or sys.stdin.isatty():  # None: it is closed
        raise click.UsageError("no prompt: give it as an argument or on standard input")
    text = _text(sys.stdin.buffer.read(), "standard input")
    return text.removesuffix("\n").removesuffix("\r")


def _text(data: bytes, what: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise click.UsageError(f"{what} is not UTF-8: {error}") from error


def _show(stream, quiet: bool) -> tuple[list[Piece], bool]:
    """The pieces, their text printed as they come unless quiet; and whether Ctrl-C ended them."""
    if sys.stdout is not None:  # None: it is closed, and what is printed goes nowhere
        sys.stdout.reconfigure(errors="replace")  # a terminal without UTF-8 gets question marks
    pieces: list[Piece] = []
    interrupted = False
    try:
        for piece in stream:
            pieces.append(piece)
            if piece.text and not quiet:
                click.echo(piece.text, nl=False)
    except KeyboardInterrupt:
        if not pieces:
            raise KeyboardInterrupt("before the first token") from None
        interrupted = True
    if not quiet:
        click.echo()
    return pieces, interrupted


def _summary(result: Result, info: dict) -> str:
    n_tokens, n_threads = len(result.token_ids), info["threads"]
    return (
        f"{n_tokens} token{'s' * (n_tokens != 1)}, "
        f"{result.timings.decode_tokens_per_second:.1f} tokens/s, "
        f"{_gigabytes_per_second(result, info):.1f} GB/s, "
        f"weights {'+'.join(loading.weight_formats(info))}, {info['isa']}, "
        f"{n_threads} thread{'s' * (n_threads != 1)}"
        f"{_LIMITS.get(result.finish.cause, '')}"
    )


def _gigabytes_per_second(result: Result, info: dict) -> float:
    """What decoding read: each token reads the weights once."""
    return result.timings.decode_tokens_per_second * info["bytes_per_token"] / 1e9


def _record(result: Result, info: dict) -> dict[str, Any]:
    timings = result.timings
    logprobs = {name: getattr(result, name) for name in ("logprobs", "prompt_logprobs")}
    return {
        "text": result.text,
        "token_ids": result.token_ids,
        "finish_reason": result.finish_reason,
        "finish": asdict(result.finish),
        "seed": result.seed,
        **{
            name: [each and asdict(each) for each in values]
            for name, values in logprobs.items()
            if values is not None
        },
        "timings": {
            **timings.as_dict(),
            "gigabytes_per_second": _gigabytes_per_second(result, info),
        },
        "model": info["model"],
        "weights": info["weights"],
        "isa": info["isa"],
        "threads": info["threads"],
    }
