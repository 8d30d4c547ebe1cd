"""rillm beside llama.cpp on models of the same bits, turn about, in one process and one minute.

pip install ".[peers]" && python bench/peers.py --shapes 135m,1b --json peers.json
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

import numpy as np
from engines import ENGINES, CTranslate2, LlamaBench, LlamaCpp, MistralRs, Rillm
from shapes import SHAPES, write

import rillm
from rillm.checkpoint import hub
from rillm.engine import choose_isa
from rillm.suite.roof import Roof

WORKS = (
    "decode",
    "depth",
    "prefill",
    "rows4",
    "rows8",
)  # rowsN: one step of N
ROOF_PASSES = 2
COUNTING = "One, two, three, four,", " five, six,"  # CTranslate2, a scale a row, goes astray later


def median(values) -> float:
    return float(np.median(values))


def best_llama_cpp(path, may_repack, **options):
    """The fastest decoding of llama.cpp's flags, on a short run."""
    found = []
    for flash_attention in (True, False):
        for repack in (False, True)[: 1 + may_repack]:
            try:
                engine = LlamaCpp(path, flash_attention=flash_attention, repack=repack, **options)
            except ValueError:  # an int8 V without flash attention
                continue
            engine.fill([1] * 16)
            engine.step(1)
            found.append((median([engine.step(1) for _ in range(16)]), flash_attention, repack))
            engine.close()
    _, flash_attention, repack = min(found)
    return {"flash_attention": flash_attention, "repack": repack}


def run(engines, roof, work, depth, rounds, n_tokens) -> list[dict]:
    """One work on all engines, a few tokens each in turn, a read of the roof between rounds.

    Tokens/s are medians over all turns; ratios and shares of the roof over rounds, each of its own
    minute: memory's speed swings by two within a run.
    """
    seconds = {engine.name: [] for engine in engines}  # [rounds][tokens]
    for engine in engines:
        engine.prepare(work, depth)
    roofs = [roof.measure(passes=ROOF_PASSES)]
    for i in range(rounds):
        for engine in engines if i % 2 else reversed(engines):
            seconds[engine.name].append(engine.turn(work, depth, n_tokens))
        roofs.append(roof.measure(passes=ROOF_PASSES))
    roofs = np.array(roofs)
    ours = next(engine for engine in engines if engine.name == "rillm")
    n_bytes = ours.bytes_per_token + ours.kv_bytes_per_position * depth
    each = {name: np.array([median(turn) for turn in turns]) for name, turns in seconds.items()}
    theirs = each.get("llama.cpp")
    rows = []
    for engine in engines:
        low, middle, high = np.percentile(np.concatenate(seconds[engine.name]), [10, 50, 90])
        is_one_row = work in ("decode", "depth")  # which reads all weights for each token
        shares = n_bytes / each[engine.name] / np.maximum(roofs[:-1], roofs[1:])
        rows.append({
            "engine": engine.name, "unit": "tokens/s", "median": 1 / middle,
            "spread": [1 / high, 1 / low],
            "ratio_to_llama_cpp": None if theirs is None else median(theirs / each[engine.name]),
            "roof_share": median(shares) if is_one_row else None,
            "roof": [roofs.min() / 1e9, roofs.max() / 1e9], "flags": engine.flags,
        })  # fmt: skip
    return rows


def check_sense(files, **options) -> None:
    """No fast garbage: on a real model, in a file of its own kind, each engine counts on."""
    with rillm.Model.from_pretrained("smollm2-135m") as model:
        prompt, expected = model.encode(COUNTING[0]), COUNTING[1]
        n = len(model.encode(expected))
        for each, path in files.items():
            engine = each(path, **options)
            text = model.decode(engine.greedy(prompt, n))
            engine.close()
            if text != expected:
                raise SystemExit(f"{each.name} goes on with {text!r}, expected {expected!r}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", default="135m", help=f"of {', '.join(SHAPES)}")
    parser.add_argument("--kinds", default="Q8_0,Q4_0", help="and Q4_K, for 1b")
    parser.add_argument("--files", nargs="*", type=Path, default=[], help="GGUF, beside shapes")
    parser.add_argument("--works", default=",".join(WORKS))
    parser.add_argument("--engines", default=",".join(ENGINES), help="and mistralrs, for --files")
    parser.add_argument("--llama-bench", nargs="*", type=Path, default=[], help="binaries like it")
    parser.add_argument("--ctranslate2", type=Path, help="SmolLM2-135M, converted: beside 135m")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--kv", default="f16")
    parser.add_argument("--depth", type=int, default=4096)
    parser.add_argument("--no-repack", action="store_true", help="llama.cpp as the file has it")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=8, help="decoded a turn")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "rillm-bench")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    options.folder.mkdir(exist_ok=True)
    threads = options.threads or rillm_threads()
    chosen = [engine for engine in ENGINES.values() if engine.name in options.engines.split(",")]
    real = dict.fromkeys(chosen, hub.find("smollm2-135m"))
    if options.ctranslate2:
        real[CTranslate2] = options.ctranslate2
    check_sense(real, threads=threads, kv=options.kv, context=256, repack=not options.no_repack)
    roof, rows = Roof(threads), []
    kinds = options.kinds.split(",")
    files = [(f"{s} {k}", s, k) for s in filter(None, options.shapes.split(",")) for k in kinds]
    files = [(name, write(options.folder, shape, kind)) for name, shape, kind in files]
    for model, path in [*files, *((file.stem, file) for file in options.files)]:
        common = {"threads": threads, "kv": options.kv, "context": options.depth + 1024}
        engines = [Rillm(path, **common)]
        engines += [LlamaBench(path, binary=each, **common) for each in options.llama_bench]
        if LlamaCpp in chosen:
            flags = best_llama_cpp(path, not options.no_repack, **common)
            engines.append(LlamaCpp(path, **common, **flags))
        if options.ctranslate2 and model.startswith("135m"):
            engines.append(CTranslate2(options.ctranslate2, **common))
        if "mistralrs" in options.engines.split(",") and path in options.files:
            engines.append(MistralRs(path))
            if not engines[-1].ask(COUNTING[0], 8).choices[0].text.startswith(COUNTING[1]):
                raise SystemExit("mistralrs does not count on")
        for work in options.works.split(","):
            depth = options.depth if work == "depth" else 8
            rounds = max(options.rounds // 4, 2) if work == "prefill" else options.rounds
            able = [e for e in engines if not e.works or work in e.works]
            for row in run(able, roof, work, depth, rounds, options.tokens):
                name = f"{model} {work}" + (f" {depth}" if work == "depth" else "")
                rows.append({"work": name, **row, "threads": threads, "isa": choose_isa()})
                show(rows[-1])
        for engine in engines:
            engine.close()
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


def rillm_threads() -> int:
    from rillm.cpu import default_threads

    return default_threads().count


def show(row) -> None:
    share = f"{row['roof_share']:.0%}" if row["roof_share"] else ""
    ratio = f"{row['ratio_to_llama_cpp']:.2f}x" if row["ratio_to_llama_cpp"] else ""
    print(
        f"{row['work']:<24} {row['engine']:<11}{row['median']:8.1f} tok/s  {ratio:>6} {share:>5}"
        f"  roof {row['roof'][0]:.0f}/{row['roof'][1]:.0f} GB/s  {row['flags']}",
        file=sys.stderr if not os.isatty(1) else sys.stdout,
        flush=True,
    )


if __name__ == "__main__":
    main()
