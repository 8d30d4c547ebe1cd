"""Record what transformers' own processors make of random logits, in the order it applies them.

Run as record.py is:

    PYTHONPATH=tests python tests/recording/samplers.py

samplers.json holds rows of logits, the ids before them, and for each setting (names and values as
transformers takes them) the processed rows: for filters which tokens are kept, as bits; for
penalties the values. Arrays are base64 of their bytes. A setting is recorded only where a border
does not depend on rounding: float64 keeps the same tokens, and so do settings a little off.
"""

import base64
import json

import numpy as np
import torch
import transformers

from weights import FIXTURES

N_ROWS, N_PENALTY_ROWS, VOCAB, N_PROMPT = 8, 3, 301, 12
EOS = 7
FILTERS = [
    *({"temperature": t, "top_k": k} for t in (0.5, 1.0) for k in (1, 2, 7, 50, 300)),
    *({"temperature": t, "top_p": p} for t in (0.6, 1.0, 2.0) for p in (0.05, 0.3, 0.8, 0.95)),
    *({"temperature": t, "min_p": p} for t in (0.6, 1.0, 2.0) for p in (0.01, 0.1, 0.5)),
    *({"temperature": t, "typical_p": p} for t in (0.6, 1.0, 2.0) for p in (0.1, 0.5, 0.9)),
    *({"temperature": t, "epsilon_cutoff": e} for t in (0.6, 1.0) for e in (3e-4, 0.01, 0.3)),
    *({"temperature": t, "eta_cutoff": e} for t in (0.6, 1.0) for e in (3e-4, 0.01, 0.3)),
    {"temperature": 0.8, "top_k": 40, "top_p": 0.9},
    {"temperature": 1.3, "top_k": 20, "top_p": 0.9, "min_p": 0.05},
    {"temperature": 1.3, "top_p": 0.9, "typical_p": 0.7, "min_p": 0.01},
    {"temperature": 0.9, "top_k": 60, "typical_p": 0.9, "epsilon_cutoff": 0.005},
    {"temperature": 1.7, "top_k": 100, "top_p": 0.97, "eta_cutoff": 0.002},
    {"temperature": 0.7, "top_p": 0.9, "repetition_penalty": 1.3, "no_repeat_ngram_size": 2},
    {"temperature": 1.1, "top_k": 30, "bad_words_ids": [[3], [9, 4]], "min_new_tokens": 5},
]
PENALTIES = [
    *({"repetition_penalty": p} for p in (0.7, 1.1, 1.8)),
    *({"no_repeat_ngram_size": n} for n in (1, 2, 3)),
    {"bad_words_ids": [[3], [250]]},
    {"bad_words_ids": [[3], [9, 4], [11, 12, 13]]},
    {"min_new_tokens": 5},
    {"min_new_tokens": 4},
    {"repetition_penalty": 1.4, "no_repeat_ngram_size": 2, "bad_words_ids": [[5]]},
]


MODEL = transformers.LlamaForCausalLM(
    transformers.LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        eos_token_id=EOS,
    )
)


def text(array: np.ndarray) -> str:
    return base64.b64encode(array.tobytes()).decode()


def process(settings: dict, ids, scores: torch.Tensor) -> np.ndarray:
    """One row as generate() would have it."""
    settings = {"top_k": 0} | settings
    config = transformers.GenerationConfig(
        **settings, do_sample="temperature" in settings, eos_token_id=EOS
    )
    MODEL._prepare_special_tokens(config, False)
    processors = MODEL._get_logits_processor(config, input_ids_seq_length=N_PROMPT)
    return processors(torch.tensor([ids]), scores[None].clone())[0].numpy()


def neighbours(settings: dict):
    """Each number a little smaller and a little larger."""
    for name, value in settings.items():
        if isinstance(value, float) and value != 1.0:
            yield settings | {name: value * (1 - 1e-5)}
            yield settings | {name: value * (1 + 1e-5)}


def kept(settings: dict, ids, scores: torch.Tensor) -> np.ndarray:
    return np.isfinite(process(settings, ids, scores))


def lines(record: dict) -> str:
    """JSON with a line for each entry and each setting."""
    parts = []
    for key, value in record.items():
        written = json.dumps(value)
        if key in ("filters", "penalties"):
            written = "[\n  " + ",\n  ".join(map(json.dumps, value)) + "\n ]"
        parts.append(f" {json.dumps(key)}: {written}")
    return "{\n" + ",\n".join(parts) + "\n}"


def main() -> None:
    random = np.random.default_rng(7)
    spread = np.linspace(0.5, 4.0, N_ROWS)[:, None]
    rows = (random.normal(size=(N_ROWS, VOCAB)) * spread).astype(np.float32)
    ids = random.integers(0, 14, size=(N_ROWS, N_PROMPT + 4)).tolist()  # few, so that runs repeat
    filters, skipped = [], 0
    for settings in FILTERS:
        for row, (before, scores) in enumerate(zip(ids, torch.tensor(rows), strict=True)):
            bits = kept(settings, before, scores)
            others = [kept(settings, before, scores.double())]
            others += [kept(other, before, scores) for other in neighbours(settings)]
            if all(np.array_equal(bits, other) for other in others):
                filters.append([settings, row, text(np.packbits(bits))])
            else:
                skipped += 1
    penalties = []
    for settings in PENALTIES:
        pairs = zip(ids[:N_PENALTY_ROWS], torch.tensor(rows), strict=False)
        results = [process(settings, before, scores) for before, scores in pairs]
        penalties.append([settings, text(np.stack(results))])
    record = {
        "transformers": transformers.__version__, "shape": [N_ROWS, VOCAB], "float32": text(rows),
        "n_prompt": N_PROMPT, "eos": EOS, "ids": ids, "filters": filters, "penalties": penalties,
    }  # fmt: skip
    file = FIXTURES / "samplers.json"
    file.write_text(lines(record) + "\n")
    print(f"{file}: {len(filters)} kept sets, {skipped} on a border, {len(penalties)} penalties")


if __name__ == "__main__":
    main()
