"""A wrong file is an error that names file, key, got and expected; a right one loses nothing."""

import json
import tracemalloc

import numpy as np
import pytest

import gguf_writer
import rillm
from rillm import cpu, errors
from rillm.engine._engine import Weights, panel_bytes
from rillm.weights.packing import whole_rows
from weights import load_case, make_tensors, random_tensor, write_model, write_safetensors

Model = rillm.Model
TOKENS = load_case("base")["tokens"]


def write_changed(folder, case, change):
    """A folder whose tensors went through `change(dict)`."""
    fixture = load_case(case) if isinstance(case, str) else case
    tensors = make_tensors(fixture["config"])
    change(tensors)
    (folder / "config.json").write_text(json.dumps(fixture["config"]))
    encoded = {n: (v.shape, np.ascontiguousarray(v).tobytes()) for n, v in tensors.items()}
    write_safetensors(folder / "model.safetensors", "F32", encoded)


def with_config(case, **changes):
    fixture = load_case(case)
    return fixture | {"config": fixture["config"] | changes}


def logits(folder, **options):
    with Model.from_pretrained(folder, **options) as model, model.session() as session:
        return session.prefill(TOKENS)


def test_oxiglade_mlx_rs_304_a_missing_tensor(tmp_path):
    write_changed(tmp_path, "base", lambda t: t.pop("model.layers.1.mlp.up_proj.weight"))
    with pytest.raises(errors.MissingTensor, match=r"model\.layers\.1\.mlp\.up_proj\.weight"):
        Model.from_pretrained(tmp_path)


def test_oxiglade_mlx_rs_304_a_layer_too_many_in_the_config(tmp_path):
    write_changed(tmp_path, "base", lambda t: None)
    config = json.loads((tmp_path / "config.json").read_text())
    n_layers = config["num_hidden_layers"]
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_hidden_layers": n_layers + 1}))
    with pytest.raises(errors.MissingTensor, match=rf"layers\.{n_layers}\."):
        Model.from_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_hidden_layers": n_layers - 1}))
    with pytest.raises(errors.UnexpectedTensor, match=rf"layers\.{n_layers - 1}\."):
        Model.from_pretrained(tmp_path)


def test_a_folder_of_several_gguf_files(tmp_path):
    """Of a model and its mmproj, as LM Studio lays them out, the model is meant."""
    for name in ("model.gguf", "mmproj-model.gguf"):
        (tmp_path / name).write_bytes(b"GGUF")
    with pytest.raises(errors.CheckpointError, match=r"/model\.gguf: "):
        Model.from_pretrained(tmp_path)
    (tmp_path / "another.gguf").write_bytes(b"GGUF")
    with pytest.raises(errors.ModelNotFound, match=r"another\.gguf, model\.gguf; give one of them"):
        Model.from_pretrained(tmp_path)


def test_an_extra_tensor_and_the_allowed_one(tmp_path):
    frequencies = {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(8, np.float32)}
    write_changed(tmp_path, "base", lambda t: t.update(frequencies))
    assert logits(tmp_path).shape == (97,)
    write_changed(tmp_path, "base", lambda t: t.update({"model.extra": np.ones(3, np.float32)}))
    with pytest.raises(errors.UnexpectedTensor, match=r"model\.extra"):
        Model.from_pretrained(tmp_path)


def test_a_disagreeing_shape(tmp_path):
    def change(tensors):
        name = "model.layers.0.self_attn.k_proj.weight"
        tensors[name] = tensors[name][:-1]

    write_changed(tmp_path, "base", change)
    with pytest.raises(errors.ShapeMismatch, match=r"k_proj.*\(31, 64\), expected \(32, 64\)"):
        Model.from_pretrained(tmp_path)


def test_mlc_ai_mlc_llm_3494_biases_that_the_config_denies(tmp_path):
    case = with_config("biases", attention_bias=False)
    write_changed(tmp_path, "biases", lambda t: None)
    (tmp_path / "config.json").write_text(json.dumps(case["config"]))
    with pytest.raises(errors.UnexpectedTensor, match="q_proj.bias|k_proj.bias"):
        Model.from_pretrained(tmp_path)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("present", [True, False])
def test_ml_explore_mlx_lm_1298_tied_and_present(tmp_path, tied, present):
    def change(tensors):
        tensors.pop("lm_head.weight", None)
        if present:
            tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]

    write_changed(tmp_path, with_config("base", tie_word_embeddings=tied), change)
    if not tied and not present:
        with pytest.raises(errors.MissingTensor, match="lm_head"):
            Model.from_pretrained(tmp_path)
        return
    plain = tmp_path / "plain"
    plain.mkdir()
    tied_case = with_config("base", tie_word_embeddings=True)
    write_changed(plain, tied_case, lambda t: t.pop("lm_head.weight", None))
    assert np.array_equal(logits(tmp_path), logits(plain))


def test_a_tied_model_with_another_head_is_refused(tmp_path):
    def change(tensors):
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"] + 1

    write_changed(tmp_path, with_config("base", tie_word_embeddings=True), change)
    with pytest.raises(errors.UnexpectedTensor, match="differs from the embedding"):
        Model.from_pretrained(tmp_path)


@pytest.mark.parametrize(
    "case, changes",
    [
        ("tied", {"vocab_size": 60_000}),  # with an equal copy of the embedding
        ("gpt2", {"n_inner": 30_000}),  # stored [columns, rows]
        ("base", {"intermediate_size": 30_000}),
    ],
)
def test_no_tensor_is_copied_whole(tmp_path, case, changes):
    """Beside the arena, which tracemalloc does not see, loading takes a megabyte a thread or so."""

    def change(tensors):
        if case == "tied":
            tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]

    write_changed(tmp_path, with_config(case, **changes), change)
    assert (tmp_path / "model.safetensors").stat().st_size > 30e6
    tracemalloc.start()
    try:
        Model.from_pretrained(tmp_path, weights="f32", threads=2).close()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 6e6


@pytest.mark.parametrize("weights", ["q8", "q4", "f16"])
@pytest.mark.parametrize("value", [np.nan, np.inf, 3e38])
def test_values_that_no_scale_holds_are_refused_by_tensor(tmp_path, weights, value):
    """ggml-org/llama.cpp#8661: amax 3e38 with an f16 scale; NaN in a file."""

    def change(tensors):
        tensors["model.layers.0.mlp.down_proj.weight"][3, 5] = value

    write_changed(tmp_path, "base", change)
    with pytest.raises(errors.UnsupportedTensorKind, match="down_proj"):
        Model.from_pretrained(tmp_path, weights=weights)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("name", ["model.layers.1.input_layernorm.weight", "model.norm.weight"])
def test_a_vector_that_is_not_finite_is_refused_by_tensor(tmp_path, name, value):
    write_changed(tmp_path, "base", lambda tensors: tensors[name].__setitem__(3, value))
    with pytest.raises(errors.MalformedFile, match=f"tensor {name} holds a value that is not"):
        Model.from_pretrained(tmp_path)


@pytest.mark.parametrize("largest", [0, 1e-45, 1e-38, 1e-30, 1e-8, 1e-4, 1, 1e4])
def test_ggml_org_llama_cpp_7313_weights_near_zero(largest):
    values = random_tensor("near zero", (16, 64), 1.0) * np.float32(largest)
    values[:, 7] = largest
    for format, steps in (("q8", 127), ("q4", 7), ("q4m", 15)):
        size = panel_bytes(format, 64)
        weights = Weights(size)
        data = values.view(np.uint8).reshape(-1)
        assert weights.pack(format, "F32", data, whole_rows(16), 64, 0, size)
        stored = weights.unpack(format, 0, size, 1, 64)
        error = np.abs(stored.astype(np.float64) - values)
        # q8 bounds every value; the q4 fits minimize the sum of squares
        worst = error.max() if format == "q8" else np.sqrt((error**2).mean())
        width = 2 * largest if format == "q4m" else largest
        assert worst <= 0.51 * width / steps + 127 * 2.0**-25


def gguf_of(folder, case, kind_of_matrices):
    """The base case as a GGUF file, q and k in pairs as llama.cpp's converter stores them."""
    from rillm.families.base import GGUF_NAMES, LLAMA_NAMES

    config, slots = load_case(case)["config"], {v: k for k, v in LLAMA_NAMES.items()}
    tensors = {}
    for name, values in make_tensors(config).items():
        layer = name.split(".")[2] if ".layers." in name else None
        slot = slots[name.replace(f".{layer}.", ".{}.")]
        if slot in ("q", "k"):
            heads = config["num_attention_heads" if slot == "q" else "num_key_value_heads"]
            half = values.shape[0] // heads // 2
            values = values.reshape(heads, 2, half, -1).swapaxes(1, 2).reshape(values.shape)
        kind = "F32" if values.ndim == 1 else kind_of_matrices
        dtype = {"F32": np.float32, "F16": np.float16}[kind]
        data = np.ascontiguousarray(values, dtype).tobytes()
        tensors[GGUF_NAMES[slot].format(layer)] = (kind, values.shape, data)
    metadata = {
        "general.architecture": "llama",
        "llama.block_count": config["num_hidden_layers"],
        "llama.context_length": config["max_position_embeddings"],
        "llama.embedding_length": config["hidden_size"],
        "llama.feed_forward_length": config["intermediate_size"],
        "llama.attention.head_count": config["num_attention_heads"],
        "llama.attention.head_count_kv": config["num_key_value_heads"],
        "llama.attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
        "llama.rope.freq_base": float(config["rope_parameters"]["rope_theta"]),
        "llama.vocab_size": config["vocab_size"],
    }
    path = folder / "model.gguf"
    path.write_bytes(gguf_writer.encode(metadata, tensors))
    return path


def test_huggingface_candle_3410_gguf_rows_in_pairs(tmp_path, tiny_folder):
    """Llama files hold q and k interleaved, also where KV heads are fewer than heads."""
    path = gguf_of(tmp_path, "base", "F32")
    a, b = logits(path, weights="f32"), logits(tiny_folder("base"), weights="f32")
    assert len(TOKENS) >= 80 and np.array_equal(a, b)


def test_not_enough_memory_is_said_before_loading(monkeypatch, tiny_folder):
    monkeypatch.setattr(cpu, "free_memory_bytes", lambda: 1000)
    with pytest.raises(errors.NotEnoughMemory, match=r"need .* GB, but 0.00 GB are free"):
        Model.from_pretrained(tiny_folder("base"))


def test_a_model_type_nobody_knows(tmp_path):
    write_model(tmp_path, "base")
    config = json.loads((tmp_path / "config.json").read_text()) | {"model_type": "mamba9"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(errors.UnknownArchitecture, match="mamba9"):
        Model.from_pretrained(tmp_path)


def test_lyogavin_airllm_369_an_unknown_rope_type(tmp_path):
    write_model(tmp_path, "base")
    config = json.loads((tmp_path / "config.json").read_text())
    config["rope_parameters"] = {"rope_type": "foo", "rope_theta": 5e5}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(errors.UnknownRopeType, match="foo"):
        Model.from_pretrained(tmp_path)
