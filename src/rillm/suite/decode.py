"""Decoding and prefill of one model, timed beside the roof of the same minute."""

from time import perf_counter

import numpy as np

from rillm.suite.roof import Roof


def measure(model, *, n_tokens: int = 128, depth: int = 0, n_prefill: int = 512, rounds: int = 3):
    """Times a model; token ids are arbitrary, since arithmetic does not depend on them.

    Parameters
    ----------
    n_tokens : int
        Decoded a round; the figure is the median of all single steps.
    depth : int
        Positions already held when decoding begins.
    n_prefill : int
        Tokens of the prompt whose prefill is timed; 0: none.

    Returns
    -------
    dict
        decode and prefill tokens/s, bytes read a token, GB/s, the roof before and after in GB/s,
        and the share of the better one; microseconds of each stage of a decode step, in all layers,
        and the bytes it reads.
    """
    info = model.info()
    roof = Roof(info["threads"])
    ids = [1 + i % (model.vocab_size - 1) for i in range(max(depth, n_prefill, 1))]
    before, steps, prefill = roof.measure(), [], []
    for _ in range(rounds):
        with model.session(context=len(ids) + n_tokens + 1) as session:
            session.prefill(ids[: max(depth, 1)])
            for i in range(n_tokens):
                begun = perf_counter()
                session.step(ids[i % len(ids)])
                steps.append(perf_counter() - begun)
            if n_prefill:
                session.rewind(0)
                begun = perf_counter()
                session.prefill(ids[:n_prefill])
                prefill.append(perf_counter() - begun)
    after = roof.measure()
    stages = _stage_seconds(model, ids[: max(depth, 1)], n_tokens)
    step = float(np.median(steps))
    kv_bytes = info["kv_bytes_per_position"] * (depth + n_tokens // 2)
    n_bytes = info["bytes_per_token"] + kv_bytes
    return {
        "decode_tokens_per_second": 1 / step,
        "prefill_tokens_per_second": n_prefill / float(np.median(prefill)) if prefill else None,
        "bytes_per_token": n_bytes,
        "gigabytes_per_second": n_bytes / step / 1e9,
        "roof_gigabytes_per_second": [before / 1e9, after / 1e9],
        "roof_share": n_bytes / step / max(before, after),
        "stage_microseconds": {name: value * 1e6 for name, value in stages.items()},
        "stage_bytes": {**info["stage_bytes"], "attend": kv_bytes},
        "depth": depth,
        "threads": info["threads"],
        "isa": info["isa"],
        "weights": info["weights"],
        "activations": info["activations"],
        "kv": info["kv"],
        "model": info["model"],
    }


def _stage_seconds(model, ids: list[int], n_tokens: int) -> dict[str, float]:
    """Of one decode step, on average; apart from the timed rounds, for looking costs a little."""
    with model.session(context=len(ids) + n_tokens) as session:
        session.prefill(ids)
        engine = session.engine
        engine.clock(True)
        for i in range(n_tokens):
            session.step(ids[i % len(ids)])
        stages = engine.stage_seconds
        engine.clock(False)
    return {name: seconds / n_tokens for name, seconds in stages.items()}
