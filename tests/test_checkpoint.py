"""Opening Hugging Face folders: weights, configs of transformers 4 and 5, what lies beside them."""

import json
import struct

import numpy as np
import pytest
import safetensors.numpy

from rillm.checkpoint import Rope, open_checkpoint
from rillm.errors import (
    CheckpointError,
    MalformedFile,
    MissingShard,
    MissingTensor,
    ModelNotFound,
    TruncatedFile,
    UnknownArchitecture,
    UnknownRopeType,
    UnsupportedConfig,
    UnsupportedTensorKind,
    UnsupportedTokenizer,
)

CONFIG = {
    "model_type": "llama",
    "vocab_size": 48,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_act": "silu",
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
}
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"


@pytest.fixture
def folder(tmp_path):
    """A folder that opens; tests spoil it."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    safetensors.numpy.save_file({"a": np.arange(6, dtype="f4").reshape(2, 3)}, tmp_path / SINGLE)
    return tmp_path


@pytest.fixture
def sharded(folder):
    """Three shards of two tensors each, and their index."""
    (folder / SINGLE).unlink()
    weight_map = {}
    for i in range(3):
        file = f"model-0000{i + 1}-of-00003.safetensors"
        tensors = {f"{i}.{name}": np.full((4,), i, "f2") for name in "xy"}
        safetensors.numpy.save_file(tensors, folder / file)
        weight_map |= dict.fromkeys(tensors, file)
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


@pytest.fixture
def config(folder):
    def config(**changes):
        raw = {key: value for key, value in (CONFIG | changes).items() if value is not ...}
        (folder / "config.json").write_text(json.dumps(raw))
        return open_checkpoint(folder).config

    return config


def file_of(header: bytes | dict, data: bytes = b"") -> bytes:
    header = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(header)) + header + data


# ---- safetensors ---------------------------------------------------------------------------------


def test_reads_what_the_safetensors_package_writes(folder):
    rng = np.random.default_rng(0)
    arrays = {"b": rng.normal(size=(3, 4)).astype("f4"), "c": rng.normal(size=7).astype("f2")}
    safetensors.numpy.save_file(arrays, folder / SINGLE, metadata={"format": "pt"})
    with open_checkpoint(folder) as checkpoint:
        assert checkpoint.format == "safetensors"
        assert {n: (t.kind, t.shape) for n, t in checkpoint.tensors.items()} == {
            "b": ("F32", (3, 4)),
            "c": ("F16", (7,)),
        }
        for name, array in arrays.items():
            tensor = checkpoint.tensors[name]
            assert tensor.data.tobytes() == array.tobytes()
            assert tensor.file == folder / SINGLE and tensor.name == name
            assert not tensor.data.flags.writeable


def test_bf16_is_read(folder):
    entry = {"dtype": "BF16", "shape": [2, 1], "data_offsets": [0, 4]}
    (folder / SINGLE).write_bytes(file_of({"w": entry}, b"abcd"))
    tensor = open_checkpoint(folder).tensors["w"]
    assert (tensor.kind, tensor.shape, tensor.data.tobytes()) == ("BF16", (2, 1), b"abcd")


def test_an_empty_tensor_is_a_tensor(folder):
    safetensors.numpy.save_file({"e": np.zeros((0, 3), "f4")}, folder / SINGLE)
    tensor = open_checkpoint(folder).tensors["e"]
    assert (tensor.shape, tensor.data.size) == ((0, 3), 0)


def test_shards_are_one_model(sharded):
    tensors = open_checkpoint(sharded).tensors
    assert tensors.keys() == {f"{i}.{name}" for i in range(3) for name in "xy"}
    for name, tensor in tensors.items():
        assert set(tensor.data.view("f2")) == {float(name[0])}


def test_the_index_is_an_allowlist(sharded):
    raw = json.loads((sharded / INDEX).read_text())
    del raw["weight_map"]["1.y"]
    (sharded / INDEX).write_text(json.dumps(raw))
    assert "1.y" not in open_checkpoint(sharded).tensors


def test_sgl_project_sglang_32279_a_missing_shard_is_named(sharded):
    (sharded / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="model-00002-of-00003") as caught:
        open_checkpoint(sharded)
    assert caught.type is MissingShard


@pytest.mark.parametrize("n_bytes", [0, 7, 20, -1])
def test_sgl_project_sglang_32279_a_short_shard_is_named(sharded, n_bytes):
    shard = sharded / "model-00002-of-00003.safetensors"
    shard.write_bytes(shard.read_bytes()[:n_bytes])
    with pytest.raises(TruncatedFile, match="model-00002-of-00003"):
        open_checkpoint(sharded)


def test_sgl_project_sglang_16235_a_tensor_of_the_index_that_its_shard_lacks(sharded):
    raw = json.loads((sharded / INDEX).read_text())
    shard = raw["weight_map"]["1.x"]
    raw["weight_map"]["model.layers.24.x"] = shard
    (sharded / INDEX).write_text(json.dumps(raw))
    with pytest.raises(MissingTensor, match=rf"{shard}: lacks model\.layers\.24\.x"):
        open_checkpoint(sharded)


@pytest.mark.parametrize("file", ["../a.safetensors", "/etc/passwd", "", "..", 3, "x/y", None])
def test_an_index_cannot_name_files_elsewhere(sharded, file):
    (sharded / INDEX).write_text(json.dumps({"weight_map": {"a": file}}))
    with pytest.raises(MalformedFile, match="beside it"):
        open_checkpoint(sharded)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"weight_map": []}', "[" * 100_000])
def test_an_index_that_is_none(sharded, text):
    (sharded / INDEX).write_text(text)
    with pytest.raises(MalformedFile, match="weight_map"):
        open_checkpoint(sharded)


def test_shards_without_an_index_are_refused(sharded):
    (sharded / INDEX).unlink()
    with pytest.raises(MalformedFile, match="3 safetensors files, but no model"):
        open_checkpoint(sharded)


def test_ggml_org_llama_cpp_6774_a_file_cut_anywhere_is_an_error(folder):
    data = (folder / SINGLE).read_bytes()
    for n_bytes in range(len(data)):
        (folder / SINGLE).write_bytes(data[:n_bytes])
        with pytest.raises((TruncatedFile, MalformedFile)):
            open_checkpoint(folder)
    (folder / SINGLE).write_bytes(data[:-1])
    with pytest.raises(TruncatedFile):
        open_checkpoint(folder)


def entry(shape, begin, end, dtype="F32"):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    "data, words",
    [
        (struct.pack("<Q", 2**63) + b"{}", "no safetensors header"),
        (struct.pack("<Q", 3) + b"[1]", "no safetensors header"),
        (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        (file_of(b'{"a":'), "JSON"),
        (file_of(b'{"a":' + b"[" * 100_000), "JSON"),
        (file_of(b'{"a":1,"a":2}'), "twice"),
        (file_of({"a": 1}), "expected dtype"),
        (file_of({"a": entry([1], 0, 4) | {"data_offsets": [0]}}, bytes(4)), "expected dtype"),
        (file_of({"a": entry([-1], 0, 4)}, bytes(4)), "expected dtype"),
        (file_of({"a": entry([True], 0, 4)}, bytes(4)), "expected dtype"),
        (file_of({"a": entry([1.0], 0, 4)}, bytes(4)), "expected dtype"),
        (file_of({"a": entry([1], 4, 0)}, bytes(4)), "expected dtype"),
        (file_of({"a": entry([2], 0, 4)}, bytes(4)), None),
        (file_of({"a": entry([2**62, 2**62], 0, 4)}, bytes(4)), None),
        (file_of({"a": entry([1], 0, 8)}, bytes(8)), "takes 4 bytes"),
        (file_of({"a": entry([1], 0, 4), "b": entry([1], 0, 4)}, bytes(4)), "no gaps"),
        (file_of({"a": entry([1], 4, 8)}, bytes(8)), "no gaps"),
        (file_of({"a": entry([1], 0, 4)}, bytes(5)), "1 bytes after"),
        (file_of({"a": entry([1], 0, 4, "F8_E4M3")}, bytes(4)), "F8_E4M3, expected one of F32"),
        (file_of({"a": entry([1], 0, 4, "I32")}, bytes(4)), "tensor a: dtype I32"),
    ],
)
def test_a_header_that_lies_is_a_typed_error(folder, data, words):
    (folder / SINGLE).write_bytes(data)
    with pytest.raises((MalformedFile, TruncatedFile, UnsupportedTensorKind), match=words):
        open_checkpoint(folder)


def test_what_is_no_model_is_said(folder, tmp_path):
    with pytest.raises(ModelNotFound, match="no such file"):
        open_checkpoint(tmp_path / "nowhere")
    (folder / SINGLE).unlink()
    with pytest.raises(ModelNotFound, match="safetensors"):
        open_checkpoint(folder)
    (folder / "config.json").unlink()
    with pytest.raises(ModelNotFound, match=r"config\.json"):
        open_checkpoint(folder)


@pytest.mark.parametrize(
    "wrapping", ["language_model.model.{}", "model.language_model.{}", "model.text_model.{}"]
)
def test_vision_and_audio_parts_are_left_out_and_counted(folder, config, wrapping):
    names = [
        wrapping.format("norm.weight"),
        "vision_tower.a",
        "model.vision_tower.b",
        "multi_modal_projector.c",
        "audio_tower.d",
        "model.vision_encoder.e",
        "vision_projection.f",
        "visual_embeddings_table.g",
        "image_tower.h",
        "video_tower.i",
        "model.connector.j",
        "aligner.k",
    ]
    safetensors.numpy.save_file({n: np.zeros(1, "f4") for n in names}, folder / SINGLE)
    checkpoint = open_checkpoint(folder)
    assert checkpoint.tensors.keys() == {"model.norm.weight"}
    assert checkpoint.skipped == {
        "vision_tower.": 2,
        "multi_modal_projector.": 1,
        "audio_tower.": 1,
        "vision_encoder.": 1,
        "vision_projection.": 1,
        "visual_embeddings_table.": 1,
        "image_tower.": 1,
        "video_tower.": 1,
        "connector.": 1,
        "aligner.": 1,
    }


# ---- config.json ---------------------------------------------------------------------------------


def test_a_config_of_transformers_4(config):
    c = config()
    assert (c.model_type, c.vocab_size, c.dim, c.n_layers, c.ffn_dim) == ("llama", 48, 64, 2, 96)
    assert (c.n_heads, c.n_kv_heads, c.head_dim) == (4, 2, 16)
    assert (
        c.arithmetic.norm_epsilon,
        c.arithmetic.activation,
        c.arithmetic.tied,
        c.context_length,
    ) == (1e-5, "silu", True, 4096)
    assert (c.arithmetic.attention_bias, c.arithmetic.mlp_bias, c.ropes[0]) == (
        False,
        False,
        Rope(),
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_theta": 1e6},
        {"rope_theta": 1_000_000, "rope_scaling": None},
        {"rope_theta": ..., "rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}},
        {"rope_theta": 1e6, "rope_parameters": {"rope_type": "default"}},
        {
            "rope_theta": ...,
            "rope_parameters": {
                "full_attention": {"rope_theta": 1e6, "rope_type": "default"},
                "sliding_attention": {"rope_theta": 1e4, "rope_type": "default"},
            },
        },
        {"rope_theta": ..., "rope_parameters": {"all": {"rope_theta": 1e6}}},
    ],
)
def test_vllm_project_vllm_28542_rope_theta_wherever_it_is(config, changes):
    assert config(**changes).ropes[0] == Rope("default", 1e6)


LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3"} | LLAMA3},
        {"rope_theta": 5e5, "rope_scaling": {"type": "llama3"} | LLAMA3},
        {
            "rope_theta": ...,
            "rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5} | LLAMA3,
        },
    ],
)
def test_llama3_rope(config, changes):
    assert config(**changes).ropes[0] == Rope("llama3", 5e5, 8.0, 1.0, 4.0, 8192)


def test_llama3_rope_defaults_to_the_models_own_context_as_transformers_5_does(config):
    scaling = {"rope_type": "llama3"} | LLAMA3
    del scaling["original_max_position_embeddings"]
    assert config(rope_scaling=scaling).ropes[0].original_context == 4096


def test_linear_rope(config):
    assert config(rope_scaling={"type": "linear", "factor": 4}).ropes[0] == Rope(
        "linear", factor=4.0
    )
    with pytest.raises(MalformedFile, match="factor is missing"):
        config(rope_scaling={"type": "linear"})


@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize("kind", ["foo", "proportional", "axial", 3])
def test_lyogavin_airllm_369_an_unknown_rope_type_is_named(config, key, kind):
    with pytest.raises(UnknownRopeType, match=rf"config\.json: the rope type is {kind!r}"):
        config(**{key: {"rope_type": kind, "factor": 2.0}})
    assert issubclass(UnknownRopeType, ValueError)


def test_mlc_ai_mlc_llm_3494_bias_flags_are_read(config):
    c = config(attention_bias=True, mlp_bias=True)
    assert (c.arithmetic.attention_bias, c.arithmetic.mlp_bias) == (True, True)


@pytest.mark.parametrize("head_dim, expected", [(32, 32), (None, 16), (..., 16)])
def test_paiml_entrenar_262_head_dim_is_optional(config, head_dim, expected):
    assert config(head_dim=head_dim).head_dim == expected


@pytest.mark.parametrize("n_kv_heads", [None, ...])
def test_key_value_heads_default_to_heads(config, n_kv_heads):
    assert config(num_key_value_heads=n_kv_heads).n_kv_heads == 4


def test_the_text_part_of_a_multimodal_config(config):
    text = CONFIG | {"rope_theta": 1e6, "hidden_size": 128}
    c = config(model_type="llava", text_config=text, hidden_size=..., eos_token_id=7)
    assert (c.model_type, c.dim, c.ropes[0].theta, c.eos_token_ids) == ("llama", 128, 1e6, (7,))


def test_an_unknown_model_type_is_named_with_the_known_ones(config):
    with pytest.raises(UnknownArchitecture, match=r"'gpt_neox9', expected one of: .*llama"):
        config(model_type="gpt_neox9")
    with pytest.raises(UnknownArchitecture, match="None"):
        config(model_type=...)


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "gptq"),
        ({"quantization_config": {"quant_method": "fp8"}}, "fp8"),
        ({"quantization": {"group_size": 64, "bits": 4}}, "quantization"),
        ({"hidden_act": "softmin"}, "activation is 'softmin', expected one of silu"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"rope_parameters": {"a": {"rope_theta": 1.0}, "b": {}}}, "differs by layer type"),
    ],
)
def test_what_is_not_computed_is_named(config, changes, words):
    with pytest.raises(UnsupportedConfig, match=words):
        config(**changes)


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"hidden_size": ...}, "hidden_size is missing, expected int"),
        ({"hidden_size": "64"}, "hidden_size is '64'"),
        ({"num_hidden_layers": 2.0}, "num_hidden_layers"),
        ({"num_hidden_layers": 0}, "at least 1"),
        ({"vocab_size": -1}, "at least 1"),
        ({"num_attention_heads": 0}, "64 dimensions"),
        ({"num_attention_heads": 5}, "64 dimensions"),
        ({"num_key_value_heads": 3}, "3 KV heads"),
        ({"head_dim": 7}, "head_dim is 7"),
        ({"rms_norm_eps": "x"}, "rms_norm_eps"),
        ({"rope_theta": 0}, "rope theta"),
        ({"rope_scaling": [1]}, "rope_scaling"),
        ({"rope_scaling": {"type": "linear", "factor": 1e999}}, "rope factor is inf"),
        ({"rope_scaling": {"type": "dynamic", "factor": 1e999}}, "a context of"),
        ({"rope_scaling": {"type": "dynamic", "factor": float("nan")}}, "a context of"),
        ({"model_type": "mistral", "sliding_window": 2**31}, "a window of 2147483648 to"),
        ({"model_type": "mistral", "sliding_window": -1}, "a window of -1 to"),
        ({"max_position_embeddings": 2**32}, "a context of 4294967296 positions, expected at most"),
        ({"rope_scaling": {"type": "llama3"} | LLAMA3 | {"low_freq_factor": 4.0}}, "low_freq"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings"),
        ({"eos_token_id": "2"}, "eos_token_id"),
    ],
)
def test_impossible_values_are_malformed(config, changes, words):
    with pytest.raises(MalformedFile, match=words):
        config(**changes)


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100_000, "\udcff"])
def test_a_config_that_is_no_json(folder, text):
    (folder / "config.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(MalformedFile, match=r"config\.json"):
        open_checkpoint(folder)


# ---- beside them ---------------------------------------------------------------------------------


def write_tokenizer(folder, **config):
    vocab = {name: i for i, name in enumerate(["a", "b", "<|end|>", "<|stop|>"])}
    added = {
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }
    table = {
        "version": "1.0",
        "added_tokens": [added | {"id": vocab[n], "content": n} for n in ("<|end|>", "<|stop|>")],
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    }
    (folder / "tokenizer.json").write_text(json.dumps(table))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("in_generation, expected", [([7, 9], (7, 9, 8, 3)), (9, (9, 8, 3))])
@pytest.mark.parametrize("token", ["<|stop|>", {"content": "<|stop|>"}])
def test_vllm_project_vllm_4180_end_tokens_are_those_of_all_files(
    folder, config, in_generation, expected, token
):
    write_tokenizer(folder, eos_token=token)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": in_generation}))
    config(eos_token_id=[8])
    assert open_checkpoint(folder).eos_token_ids == expected


def test_end_tokens_without_a_tokenizer(folder, config):
    config(eos_token_id=8)
    checkpoint = open_checkpoint(folder)
    assert checkpoint.eos_token_ids == (8,)
    with pytest.raises(UnsupportedTokenizer, match=r"no tokenizer\.json"):
        _ = checkpoint.tokenizer


def test_the_sampling_options_of_generation_config(folder):
    raw = {"do_sample": True, "temperature": 0.6, "top_p": 0.9, "top_k": None, "bos_token_id": 1}
    (folder / "generation_config.json").write_text(json.dumps(raw))
    options = {"do_sample": True, "temperature": 0.6, "top_p": 0.9}
    assert open_checkpoint(folder).generation == options


@pytest.mark.parametrize(
    "template, expected",
    [
        ("x", "x"),
        (None, None),
        ([{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}], "d"),
    ],
)
def test_the_chat_template(folder, template, expected):
    write_tokenizer(folder, chat_template=template)
    assert open_checkpoint(folder).chat_template == expected
    (folder / "chat_template.jinja").write_text("from its own file")
    assert open_checkpoint(folder).chat_template == "from its own file"


def test_random_damage_is_always_a_typed_error(folder):
    rng = np.random.default_rng(0)
    whole = np.frombuffer((folder / SINGLE).read_bytes(), "u1")
    for _ in range(500):
        data = whole.copy()
        data[rng.integers(0, data.size, 2)] = rng.integers(0, 256, 2)
        (folder / SINGLE).write_bytes(data[: rng.integers(0, data.size + 1)].tobytes())
        try:
            for tensor in open_checkpoint(folder).tensors.values():
                assert tensor.data.size == int(np.prod(tensor.shape)) * 4
        except CheckpointError:
            pass
