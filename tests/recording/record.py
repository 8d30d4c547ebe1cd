"""Record golden logits: each case is a tiny model built and run by transformers in float32.

Run in its own environment (torch 2.13.0, transformers 5.24.0, numpy, safetensors):

    PYTHONPATH=tests python tests/recording/record.py [CASE ...]

Without names every case is recorded. A new model type is an entry of CASES and one of LAYOUTS in
tests/layouts.py: a missing or extra tensor stops the recording.

A fixture holds logits, a row for each of `positions`, of one forward over `tokens`. Where rotary
frequencies depend on the length it also holds `lengths`: a row is then from a forward over so many
of the tokens, by a fresh model. `logits` are {"shape": [rows, vocab], "float32": base64 of the
little-endian values, row by row}: exact, at half the size of digits.
"""

import base64
import copy
import json
import sys
import tempfile
from pathlib import Path

import torch
import transformers

from recording.cases import CASES
from recording.settings import EPSILONS, POSITIONS, SIZES
from weights import FIXTURES, random_integers, write_model


def config_as_written(model_type: str, changes: dict) -> dict:
    """The config.json that transformers writes for a model of these sizes."""
    default = transformers.AutoConfig.for_model(model_type)
    sizes = SIZES if model_type == "llama" else SIZES | EPSILONS
    sizes = {k: v for k, v in sizes.items() if k in (default.to_dict() | default.attribute_map)}
    config = transformers.AutoConfig.for_model(model_type, **(sizes | copy.deepcopy(changes)))
    with tempfile.TemporaryDirectory() as folder:
        transformers.AutoModelForCausalLM.from_config(config).float().save_pretrained(folder)
        return json.loads((Path(folder) / "config.json").read_text())


def config_v4(config: dict, changes: dict, type_key: str) -> dict:
    """The same config as transformers 4 wrote it; both must mean the same to transformers 5."""
    old = {k: v for k, v in config.items() if k not in ("rope_parameters", "dtype")}
    rope = dict(config.get("rope_parameters", {}))
    if "full_attention" in rope:  # gemma3_text, olmo3
        if config["model_type"] == "gemma3_text":
            old["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
        rope = dict(rope["full_attention"])
    if rope:
        theta, partial = "rope_theta", "partial_rotary_factor"
        if config["model_type"] == "gpt_neox":
            theta, partial = "rotary_emb_base", "rotary_pct"
        old[theta] = rope.pop("rope_theta")
        if "partial_rotary_factor" in rope:
            old[partial] = rope.pop("partial_rotary_factor")
        if "original_max_position_embeddings" in old:
            rope.pop("original_max_position_embeddings", None)
        kind = rope.pop("rope_type")
        old["rope_scaling"] = None if kind == "default" else {type_key: kind, **rope}
    patterned = {k: v for k, v in (old | changes).items() if k != "layer_types"}
    told = "layer_types" in old and patterned["sliding_window"]  # exaone4 needs them without
    if told and read(patterned)["layer_types"] == old["layer_types"]:
        del old["layer_types"]
    old |= changes | {"torch_dtype": "float32", "transformers_version": "4.57.0"}
    v4, v5 = read(old), read(config)
    assert {k: v4[k] for k in v5} == v5, (v4, v5)
    return old


def read(config: dict) -> dict:
    """What transformers understands of a config.json, on a copy as it writes into its argument."""
    understood = transformers.AutoConfig.for_model(**copy.deepcopy(config)).to_dict()
    rope = understood.get("rope_parameters") or {}
    for part in (rope, *rope.values()):
        if isinstance(part, dict):
            part.pop("type", None)
    return {k: v for k, v in understood.items() if k not in ("transformers_version", "dtype")}


def run(config: dict, first_column: dict | None, tokens: list[int], dtype=torch.float32):
    """Logits [n_tokens, vocab] with the generated weights: eager attention."""
    with tempfile.TemporaryDirectory() as folder:
        write_model(folder, {"config": config, "first_column": first_column})
        model, info = transformers.AutoModelForCausalLM.from_pretrained(
            folder, attn_implementation="eager", dtype=dtype, output_loading_info=True
        )
    assert not any(info.values()), info  # no missing, unexpected or mismatched keys
    with torch.no_grad():
        return model.eval()(torch.tensor([tokens]), use_cache=False).logits[0]


def rows_of(settings: dict) -> tuple[list[int], list[int] | None]:
    """Positions of the rows, and the lengths they are recorded at where lengths matter."""
    if "lengths" not in settings:
        return list(settings.get("positions", POSITIONS)), None
    positions, lengths = [], []
    for n in settings["lengths"]:
        rows = [p for p in sorted({n // 4, n // 2, n - 3, n - 2, n - 1}) if p >= 0]
        positions += rows
        lengths += [n] * len(rows)
    return positions, lengths


def json_text(value, indent: str = "") -> str:
    """JSON, one key of an object a line and lists on one line."""
    if not isinstance(value, dict):
        return json.dumps(value)
    lines = [f"{indent} {json.dumps(k)}: {json_text(v, indent + ' ')}" for k, v in value.items()]
    return "{\n" + ",\n".join(lines) + f"\n{indent}}}"


def record(name: str) -> None:
    """Run one case and write its fixture."""
    model_type, changes, settings = (*CASES[name], {})[:3]
    config = config_as_written(model_type, changes)
    positions, lengths = rows_of(settings)
    assert len(positions) >= 64, f"{name}: {len(positions)} rows"
    n = max(lengths or [p + 1 for p in positions])
    tokens = [int(z % config["vocab_size"]) for z in random_integers("tokens", n)]
    first_column = settings.get("first_column")

    def logits(dtype) -> torch.Tensor:
        forwards = {
            n: run(config, first_column, tokens[:n], dtype) for n in set(lengths or [len(tokens)])
        }
        at = lengths or [len(tokens)] * len(positions)
        return torch.stack([forwards[n][p] for p, n in zip(positions, at, strict=True)])

    golden = logits(torch.float32)
    rounding = (golden - logits(torch.float64)).abs().max()
    assert rounding < 3e-5, f"{name}: float32 and float64 differ by {rounding}"

    fixture = {
        "recorded_with": {"transformers": transformers.__version__, "torch": torch.__version__},
        "config": config,
    }
    old = settings.get("config_v4", {})
    if old is not False:
        fixture["config_v4"] = config_v4(config, old, settings.get("type_key", "rope_type"))
    if first_column:
        fixture["first_column"] = first_column
        assert golden.max() < 0, f"{name}: a logit is not negative: {golden.max()}"
    fixture |= {"tokens": tokens, "positions": positions}
    if lengths:
        fixture["lengths"] = lengths

    values = base64.b64encode(golden.numpy().astype("<f4").tobytes()).decode()
    fixture["logits"] = {"shape": list(golden.shape), "float32": values}
    file = FIXTURES / f"{name}.json"
    file.write_text(json_text(fixture) + "\n")
    size, mean, largest = file.stat().st_size, golden.abs().mean(), golden.abs().max()
    print(f"{name}: {size} bytes, |logit| {mean:.2f} to {largest:.2f}, rounding {rounding:.0e}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    for case in sys.argv[1:] or CASES:
        record(case)
