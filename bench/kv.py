"""What a KV format costs in quality, and how deep it stays fast.

python bench/kv.py quality [MODEL]     perplexity, and greedy tokens that agree with f32
python bench/kv.py depth [MODEL]       tokens/s at 0 to 8192 positions
python bench/kv.py sink [MODEL]        a text of ten contexts, and 1e5 tokens in constant memory
"""

import argparse
import json
import os
from pydoc_data.topics import topics
from time import perf_counter

import numpy as np

import rillm
from rillm.suite.roof import Roof

FORMATS = ("f32", "f16", "q8")
DEPTHS = (0, 128, 512, 1024, 2048, 4096, 8192)


def load(options, **more) -> rillm.Model:
    formats = {"weights": options.weights, "activations": options.activations}
    return rillm.Model.from_pretrained(options.model, **formats, **more)


def a_text(model, n: int) -> list[int]:
    """The first n ids of the standard library's own help, which every Python has."""
    ids = model.encode("\n\n".join(topics[name] for name in sorted(topics)))
    return ids[:n]


def perplexity(scores) -> float:
    return float(np.exp(-np.nanmean(scores)))


def quality(options) -> list[dict]:
    """Of a text in windows of the context; greedy tokens after its beginnings, beside f32's."""
    rows, first = [], None
    for kv in FORMATS:
        with load(options, kv=kv) as model:
            ids, window = a_text(model, options.tokens), 2048
            scores = []
            for start in range(0, len(ids), window):
                with model.session() as session:
                    scores.append(session.score(ids[start : start + window]))
            prompts = [ids[i : i + 200] for i in range(0, 16 * 500, 500)]
            said = [model.generate(p, max_new_tokens=64).token_ids for p in prompts]
            first = first or said
            pairs = [(a, b) for x, y in zip(first, said, strict=True) for a, b in zip(x, y)]  # noqa: B905
            rows.append(
                {
                    "kv": kv,
                    "bytes_per_position": model.info()["kv_bytes_per_position"],
                    "perplexity": perplexity(np.concatenate(scores)),
                    "greedy_tokens_equal": sum(a == b for a, b in pairs) / len(pairs),
                    "greedy_texts_equal": sum(a == b for a, b in zip(first, said, strict=True)),
                }
            )
    return rows


def depth(options) -> list[dict]:
    """Decoding with every format at every depth, turn about; medians."""
    models = [load(options, kv=kv) for kv in FORMATS[1:]]
    roof, rows = Roof(models[0].info()["threads"]), []
    for n in DEPTHS:
        sessions = [model.session(context=n + 200) for model in models]
        for session in sessions:
            session.prefill([1 + i % 1000 for i in range(max(n, 1))], chunk=512)
        seconds, before = [[] for _ in models], roof.measure()
        for _ in range(8):
            for session, times in zip(sessions, seconds, strict=True):
                for i in range(12):
                    begun = perf_counter()
                    session.step(1 + i)
                    times.append(perf_counter() - begun)
        best = max(before, roof.measure())
        for model, session, times in zip(models, sessions, seconds, strict=True):
            info = model.info()
            n_bytes = info["bytes_per_token"] + info["kv_bytes_per_position"] * n
            step = float(np.median(times))
            rows.append(
                {
                    "depth": n,
                    "kv": info["kv"],
                    "tokens_per_second": 1 / step,
                    "gigabytes_per_second": n_bytes / step / 1e9,
                    "roof_share": n_bytes / step / best,
                }
            )
            session.close()
    return rows


def sink(options) -> list[dict]:
    """Perplexity beyond the context beside cold windows of it; time and memory over many wraps."""
    context = 512
    with load(options) as model:
        ids = a_text(model, 10 * context)
        with model.session(context, context_policy="sink") as session:
            going = session.score(ids)
        picked = np.arange(context + 7, len(ids), 23)
        cold = []
        for i in picked:  # the tokens that it kept, in a session of their own
            kept = [*ids[:4], *ids[i - context + 4 : i]]
            with model.session() as session:
                session.prefill(kept)
                cold.append(session.score([ids[i]])[0])
        rows = [
            {
                "perplexity_at_ten_contexts": perplexity(going[picked]),
                "of_cold_windows": perplexity(cold),
                "tokens": len(picked),
            }
        ]
        with model.session(context, context_policy="sink") as session:
            token, seconds, resident = ids[0], [], []
            for i in range(options.steps):
                begun = perf_counter()
                logits = session.step(token)
                seconds.append(perf_counter() - begun)
                token = int(logits.argmax()) if i % 50 else ids[i % len(ids)]
                if i % 1000 == 0:
                    resident.append(resident_bytes())
        with model.session(context) as session:  # plain, held at the same depth
            session.prefill(ids[: context - 1])
            plain = []
            for i in range(len(seconds) // 4):
                session.rewind(context - 2)
                begun = perf_counter()
                session.step(ids[i % len(ids)])
                plain.append(perf_counter() - begun)
        steady = np.array(seconds[len(seconds) // 10 :])
        rows.append(
            {
                "steps": options.steps,
                "median_ms": float(np.median(steady)) * 1e3,
                "p99_over_median": tail(steady, len(steady)),
                "of_2000": tail(steady, 2000),
                "plain_p99_over_median": tail(plain, len(plain)),
                "plain_of_2000": tail(plain, 2000),
                "memory_growth_bytes": resident[-1] - resident[len(resident) // 10],
            }
        )
    return rows


def tail(seconds, n: int) -> float:
    """The 99th percentile of n steps in a row over their median; the median of all such stretches.

    Memory's speed may double from one second to the next on a shared machine: short stretches that
    still hold some wraps tell what wraps cost.
    """
    parts = [np.array(seconds[i : i + n]) for i in range(0, len(seconds) - n + 1, n)]
    return float(np.median([np.percentile(part, 99) / np.median(part) for part in parts]))


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", choices=["quality", "depth", "sink"])
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--weights", default="auto")
    parser.add_argument("--activations", default="int8")
    parser.add_argument("--tokens", type=int, default=20000, help="of the text")
    parser.add_argument("--steps", type=int, default=100_000, help="of the endless session")
    parser.add_argument("--json", help="a file to write")
    options = parser.parse_args()
    rows = {"quality": quality, "depth": depth, "sink": sink}[options.work](options)
    for row in rows:
        print("  ".join(f"{k} {v:.5g}" if type(v) is float else f"{k} {v}" for k, v in row.items()))
    if options.json:
        with open(options.json, "w") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
