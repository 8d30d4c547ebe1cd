"""Reading GGUF: against the gguf package, against arithmetic, and against files that lie."""

import random
import struct
import time
import tracemalloc
from itertools import product

import gguf as gguf_package
import numpy as np
import pytest

from gguf_writer import encode, llama_metadata, preamble, string, tensor_entry, value
from rillm.checkpoint import Rope, gguf, open_checkpoint
from rillm.errors import (
    CheckpointError,
    MalformedFile,
    MissingShard,
    TruncatedFile,
    UnknownArchitecture,
    UnknownRopeType,
    UnsupportedConfig,
    UnsupportedTensorKind,
)

SMALL = {"a": ("F32", (2, 3), np.arange(6, dtype="<f4").tobytes())}


@pytest.fixture
def read(tmp_path):
    def read(data: bytes):
        path = tmp_path / "model.gguf"
        path.write_bytes(data)
        return gguf.read(path)

    return read


@pytest.fixture
def config(tmp_path):
    def config(*, tensors=SMALL, **changes):
        path = tmp_path / "model.gguf"
        path.write_bytes(encode(llama_metadata(**changes), tensors))
        return open_checkpoint(path).config

    return config


# ---- what the file says --------------------------------------------------------------------------


def test_reads_what_the_gguf_package_writes(tmp_path):
    path = tmp_path / "model.gguf"
    writer = gguf_package.GGUFWriter(path, "llama")
    writer.add_uint8("u8", 200)
    writer.add_int8("i8", -100)
    writer.add_uint16("u16", 60000)
    writer.add_int16("i16", -30000)
    writer.add_uint32("u32", 4_000_000_000)
    writer.add_int32("i32", -2_000_000_000)
    writer.add_uint64("u64", 2**63)
    writer.add_int64("i64", -(2**63))
    writer.add_float32("f32", 0.5)
    writer.add_float64("f64", 0.1)
    writer.add_bool("yes", True)
    writer.add_string("text", "né\n🦙")
    writer.add_array("strings", ["", "a", "🦙"])
    writer.add_array("integers", [1, -2, 3])
    rng = np.random.default_rng(0)
    plain = rng.normal(size=(3, 5)).astype("f4")
    writer.add_tensor("plain", plain)
    writer.add_tensor("half", plain.astype("f2"))
    packed = {}
    for name, shape in (("Q8_0", (2, 68)), ("Q4_0", (2, 36)), ("Q4_1", (2, 40)), ("BF16", (2, 6))):
        packed[name] = rng.integers(0, 256, shape, dtype="u1")
        kind = gguf_package.GGMLQuantizationType[name]
        writer.add_tensor(name, packed[name], raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    metadata, tensors = gguf.read(path)
    integers = [metadata.integer(k) for k in ("u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64")]
    assert integers == [
        200, -100, 60000, -30000, 4_000_000_000, -2_000_000_000, 2**63, -(2**63)
    ]  # fmt: skip
    assert (metadata.number("f32"), metadata.number("f64")) == (0.5, 0.1)
    assert metadata.flag("yes") is True
    assert metadata.text("text") == "né\n🦙"
    assert metadata.array("strings", ("string",)).tolist() == ["", "a", "🦙"]
    assert metadata.array("integers", ("i32",)).tolist() == [1, -2, 3]
    assert tensors["plain"].shape == (3, 5) and tensors["plain"].kind == "F32"
    assert tensors["plain"].data.tobytes() == plain.tobytes()
    assert tensors["half"].data.tobytes() == plain.astype("f2").tobytes()
    for name, content in packed.items():
        assert tensors[name].kind == name
        assert tensors[name].data.tobytes() == content.tobytes()
    assert [tensors[n].shape for n in packed] == [(2, 64), (2, 64), (2, 64), (2, 3)]


def test_the_tests_own_writer_is_read_by_the_gguf_package(tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(encode(llama_metadata(), SMALL))
    reader = gguf_package.GGUFReader(path)
    assert reader.get_field("llama.block_count").contents() == 2
    np.testing.assert_array_equal(reader.tensors[0].data, np.arange(6.0).reshape(2, 3))


def test_version_2_and_other_alignments_are_read(read):
    _, tensors = read(encode({"general.alignment": 256}, SMALL, version=2))
    assert tensors["a"].data.tobytes() == SMALL["a"][2]


def test_the_header_of_a_262k_vocabulary_takes_at_most_0_1_s(read, tmp_path):
    n = 262_144
    metadata = llama_metadata(
        tokenizer__ggml__tokens=[f"token{i}" for i in range(n)],
        tokenizer__ggml__scores=[0.0] * n,
        tokenizer__ggml__token_type=[1] * n,
        tokenizer__ggml__merges=[f"tok en{i}" for i in range(n)],
    )
    read(encode(metadata, SMALL))
    seconds = []
    for _ in range(5):
        start = time.process_time()
        metadata, _ = gguf.read(tmp_path / "model.gguf")
        seconds.append(time.process_time() - start)
    assert min(seconds) <= 0.1
    assert metadata.array("tokenizer.ggml.tokens", ("string",)).tolist()[-1] == "token262143"


def test_a_closed_checkpoint_lets_go_of_its_tensors(tmp_path):
    (tmp_path / "model.gguf").write_bytes(encode(llama_metadata(), SMALL))
    with open_checkpoint(tmp_path / "model.gguf") as checkpoint:
        assert checkpoint.format == "gguf" and checkpoint.tensors.keys() == {"a"}
    assert not checkpoint.tensors


def test_a_folder_with_one_gguf_file_is_that_file(tmp_path):
    (tmp_path / "model.gguf").write_bytes(encode(llama_metadata(), SMALL))
    assert open_checkpoint(tmp_path).path == tmp_path / "model.gguf"


# ---- files that lie ------------------------------------------------------------------------------


def test_cve_2024_23605_counts_are_held_against_the_file(read):
    for n_tensors, n_entries in ((2**62, 2**62), (0, 2**62), (2**62, 0), (2**64 - 1, 0), (1, 0)):
        tracemalloc.start()
        with pytest.raises(TruncatedFile, match="but the file has 24"):
            read(preamble(n_tensors, n_entries))
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 1 << 20


@pytest.mark.parametrize("n_bytes", [20, 2**31, 2**62, 2**63, 2**64 - 1, 2**64 - 8])
def test_a_string_is_held_against_the_file(read, n_bytes):
    with pytest.raises(TruncatedFile):
        read(preamble(0, 1) + struct.pack("<Q", n_bytes) + b"abc" + bytes(10))
    array = struct.pack("<IIQ", 9, 8, 2) + string("x") + struct.pack("<Q", n_bytes) + b"abc"
    with pytest.raises(TruncatedFile, match="tokens"):
        read(preamble(0, 1) + string("tokens") + array)


@pytest.mark.parametrize("element_type", [0, 3, 6, 8, 12])
@pytest.mark.parametrize("count", [100, 2**61, 2**64 - 1])
def test_an_array_is_held_against_the_file(read, element_type, count):
    array = struct.pack("<IIQ", 9, element_type, count) + bytes(16)
    with pytest.raises(TruncatedFile, match="tokens"):
        read(preamble(0, 1) + string("tokens") + array)


@pytest.mark.parametrize(
    "shape", [(2**62,), (2**63, 2**63), (2**32, 2**32), (2**16, 2**16, 2**16, 2**16), (3, 3)]
)
def test_cve_2024_21802_dimensions_are_held_against_the_file(read, shape):
    header = preamble(1, 0) + tensor_entry("a", "F32", shape, 0)
    with pytest.raises(TruncatedFile, match="tensor a"):
        read(header + bytes(-len(header) % 32) + bytes(32))


@pytest.mark.parametrize("offset", [32, 2**63, 2**64 - 32])
def test_an_offset_is_held_against_the_file(read, offset):
    header = preamble(1, 0) + tensor_entry("a", "F32", (8,), offset)
    with pytest.raises(TruncatedFile, match="tensor a"):
        read(header + bytes(-len(header) % 32) + bytes(32))


def test_ggml_org_llama_cpp_6774_a_file_cut_anywhere_is_an_error(read):
    """Under a map the missing bytes would be a SIGBUS."""
    data = encode(llama_metadata(words=["a", "b"]), {"a": ("F32", (8,), bytes(32))})
    read(data)
    for n_bytes in range(len(data)):
        with pytest.raises((TruncatedFile, MalformedFile) if n_bytes < 4 else TruncatedFile):
            read(data[:n_bytes])


@pytest.mark.parametrize(
    "alignment", [2**31, 3, 0, 2**21, ("i32", 32), ("u64", 32), ("f32", 32.0), "32"]
)
def test_ggml_org_ggml_1516_alignment(read, alignment):
    with pytest.raises(MalformedFile, match=r"general\.alignment"):
        read(encode({"general.alignment": alignment}, SMALL))


@pytest.mark.parametrize(
    "kind, name, plain",
    [
        (31, "Q4_0_4_4", "Q4_0"),
        (32, "Q4_0_4_8", "Q4_0"),
        (33, "Q4_0_8_8", "Q4_0"),
        (36, "IQ4_NL_4_4", "IQ4_NL"),
        (37, "IQ4_NL_4_8", "IQ4_NL"),
        (38, "IQ4_NL_8_8", "IQ4_NL"),
    ],
)
def test_blocks_reordered_for_one_cpu_are_told_from_those_in_order(read, kind, name, plain):
    """Numbers and names that ggml.h had until December 2024."""
    header = preamble(1, 0) + tensor_entry("a", kind, (32,), 0)
    with pytest.raises(
        UnsupportedTensorKind, match=f"a: {name}, expected .*; take the {plain} file"
    ):
        read(header + bytes(1000))


@pytest.mark.parametrize("kind, name", [(16, "IQ2_XXS"), (35, "TQ2_0"), (99, "type 99")])
def test_a_tensor_kind_that_is_not_read_is_named(read, kind, name):
    header = preamble(1, 0) + tensor_entry("blk.0.attn_q.weight", kind, (32,), 0)
    with pytest.raises(UnsupportedTensorKind, match=f"blk.0.attn_q.weight: {name}, expected"):
        read(header + bytes(1000))


@pytest.mark.parametrize(
    "data, words",
    [
        (b"GGML" + bytes(40), "expected b'GGUF'"),
        (preamble(0, 0, version=1), "version 1"),
        (preamble(0, 0, version=4), "version 4"),
        (preamble(0, 0, version=3 << 24), "big-endian"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"),
        (preamble(0, 2) + (string("k") + value(1)) * 2, "k comes twice"),
        (preamble(0, 1) + string("k") + struct.pack("<I", 13) + bytes(8), "value type 13"),
        (preamble(0, 1) + string("k") + struct.pack("<IIQ", 9, 9, 0), "value type 9"),
        (preamble(0, 1) + string("k") + value(("bool", 2)), "expected 0 or 1"),
        (preamble(0, 1) + string(b"\xff") + value(1), "UTF-8"),
        (preamble(1, 0) + tensor_entry("a", "F32", (), 0) + bytes(99), "0 dimensions"),
        (preamble(1, 0) + tensor_entry("a", "F32", (1,) * 5, 0) + bytes(99), "5 dimensions"),
        (preamble(1, 0) + tensor_entry("a", "F32", (0, 2**62), 0) + bytes(99), "dimension is 0"),
        (preamble(1, 0) + tensor_entry("a", "F32", (1,), 4) + bytes(99), "aligned"),
        (preamble(1, 0) + tensor_entry("a", "Q8_0", (2, 33), 0) + bytes(99), "blocks of 32"),
        (preamble(2, 0) + tensor_entry("a", "F32", (1,), 0) * 2 + bytes(99), "a comes twice"),
        (preamble(0, 1) + string("k" * 65_536) + value(1), "a metadata key has 65536 bytes"),
        (
            preamble(1, 0) + tensor_entry("a" * 65_536, "F32", (1,), 0) + bytes(99),
            "a tensor's name has 65536 bytes, expected at most 65535: 'aaa",
        ),
    ],
)
def test_what_breaks_the_format_is_said(read, data, words):
    with pytest.raises(MalformedFile, match=words):
        read(data)


# ---- models split over several files -------------------------------------------------------------


@pytest.fixture
def parts(tmp_path):
    """Writes the parts of a split model, (metadata, tensors) each; returns the first one."""

    def parts(*contents, count=None):
        count = count or len(contents)
        for number, (metadata, tensors) in enumerate(contents):
            own = {"split.no": ("u16", number), "split.count": ("u16", count)} | metadata
            path = tmp_path / f"tiny-{number + 1:05}-of-{count:05}.gguf"
            path.write_bytes(encode(own, tensors))
        return tmp_path / f"tiny-00001-of-{count:05}.gguf"

    return parts


def tensor(number):
    return "F32", (4,), np.full(4, number, "<f4").tobytes()


def test_the_parts_of_a_split_model_are_one(parts):
    whole = llama_metadata() | {"split.tensors.count": ("i32", 3)}
    contents = (whole, {"a": tensor(1)}), ({}, {"b": tensor(2), "c": tensor(3)})
    path = parts(*contents)
    metadata, tensors = gguf.read(path)
    assert metadata.integer("llama.block_count") == 2
    assert {name: t.data.tobytes() for name, t in tensors.items()} == {
        name: t[2] for _, table in contents for name, t in table.items()
    }
    assert open_checkpoint(path).tensors.keys() == open_checkpoint(path.parent).tensors.keys()
    with pytest.raises(MalformedFile, match=r"part 2 .* give the first one, tiny-00001-of-00002"):
        gguf.read(path.with_name("tiny-00002-of-00002.gguf"))


def test_sgl_project_sglang_32279_a_part_that_is_missing_is_named(parts):
    path = parts(({}, {"a": tensor(1)}), count=3)
    with pytest.raises(MissingShard, match=r"tiny-00002-of-00003\.gguf, tiny-00003-of-00003\.gguf"):
        gguf.read(path)
    path = parts(({}, {"a": tensor(1)}), count=65535)
    with pytest.raises(MissingShard, match="and 65531 more not found"):
        gguf.read(path)


@pytest.mark.parametrize(
    "first, second, words",
    [
        (({}, {"a": tensor(1)}), ({}, {"a": tensor(2)}), "tensor a comes twice"),
        (({}, {"a": tensor(1)}), ({"split.no": ("u16", 0)}, {}), "split.no and split.count are 0"),
        (({}, {"a": tensor(1)}), ({"split.count": ("u16", 3)}, {}), "are 1 and 3, expected 1 and"),
        (({"split.tensors.count": ("i32", 9)}, {"a": tensor(1)}), ({}, {}), "is 9, but .* hold 1"),
        (({"split.count": ("u16", 3)}, {}), ({}, {}), "split into 3 files; give the first one"),
        (({"split.count": "2"}, {}), ({}, {}), "split.count is string"),
    ],
)
def test_parts_that_contradict_each_other(parts, first, second, words):
    with pytest.raises(MalformedFile, match=words):
        gguf.read(parts(first, second))


def test_cve_2026_7482_damaged_files_never_give_bytes_outside_themselves(tmp_path):
    """Random damage: either a typed error, or tensors of just the size that their shape says."""
    metadata = llama_metadata(tokenizer__ggml__tokens=["a", "b"])
    tensors = {"a": ("F32", (8, 4), bytes(128)), "b": ("Q8_0", (1, 32), bytes(34))}
    whole = encode(metadata, tensors)
    rng = random.Random(1)
    path = tmp_path / "model.gguf"
    outcomes = set()
    for _ in range(1500):
        data = bytearray(whole)
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(len(data))] = rng.choice([0, 1, 0x7F, 0xFF, rng.randrange(256)])
        path.write_bytes(data[: rng.choice([len(data), rng.randrange(len(data))])])
        try:
            checkpoint = open_checkpoint(path)
        except CheckpointError as error:
            outcomes.add(type(error))
            continue
        outcomes.add(None)
        for tensor in checkpoint.tensors.values():
            n_values = int(np.prod(tensor.shape))
            kind = gguf_package.GGMLQuantizationType[tensor.kind]
            block_values, block_bytes = gguf_package.GGML_QUANT_SIZES[kind]
            n_bytes = n_values // block_values * block_bytes
            assert tensor.data.size == n_bytes <= path.stat().st_size
    assert {None, TruncatedFile, MalformedFile, UnsupportedTensorKind} <= outcomes


# ---- metadata as a config ------------------------------------------------------------------------


def test_metadata_becomes_a_config(config):
    c = config(tokenizer__ggml__tokens=["a", "b", "c"], tokenizer__ggml__bos_token_id=1)
    assert (c.model_type, c.vocab_size, c.dim, c.n_layers) == ("llama", 3, 64, 2)
    assert (c.n_heads, c.n_kv_heads, c.head_dim, c.ffn_dim) == (4, 2, 16, 96)
    assert c.arithmetic.norm_epsilon == pytest.approx(1e-5) and c.context_length == 128
    assert (c.arithmetic.tied, c.arithmetic.attention_bias, c.arithmetic.mlp_bias) == (
        True,
        False,
        False,
    )
    assert c.ropes[0] == Rope() and c.bos_token_id == 1


def test_tensors_tell_ties_and_biases(config):
    names = ("output.weight", "blk.0.attn_q.bias", "blk.0.ffn_up.bias")
    c = config(tensors={name: ("F32", (1,), bytes(4)) for name in names})
    assert (c.arithmetic.tied, c.arithmetic.attention_bias, c.arithmetic.mlp_bias) == (
        False,
        True,
        True,
    )


def test_head_dimensions_of_their_own(config):
    keys = ("llama.attention.key_length", "llama.attention.value_length")
    assert config(**dict.fromkeys((*keys, "llama.rope.dimension_count"), 32)).head_dim == 32
    with pytest.raises(UnsupportedConfig, match=r"rope\.dimension_count is 8"):
        config(llama__rope__dimension_count=8)


def test_a_number_may_be_given_to_each_layer(config):
    keys = ("attention.head_count", "attention.head_count_kv", "feed_forward_length")
    same = {"attention.head_count": 4, "attention.head_count_kv": 2, "feed_forward_length": 96}
    for kind in ("u32", "i32"):
        lists = {f"llama.{key}": (kind, [same[key]] * 2) for key in keys}
        c = config(**lists)
        assert (c.n_heads, c.n_kv_heads, c.ffn_dim) == (4, 2, 96)
    for key, values in product(keys, ([4, 2], [4], [4, 4, 4], [])):
        with pytest.raises(UnsupportedConfig, match=rf"{key} is \[.*\], expected one number, .* 2"):
            config(**{f"llama.{key}": ("i32", values)})


def test_ggml_knows_no_rank_ones_outermost_are_left_out(read):
    """ggml_n_dims of ggml.c."""
    shapes = {"a": (1, 8), "b": (1, 1, 1, 8), "c": (1, 1, 3, 8), "d": (3, 1), "e": (1, 1)}
    table = {name: ("F32", shape, bytes(4 * int(np.prod(shape)))) for name, shape in shapes.items()}
    _, tensors = read(encode({}, table))
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    assert shapes == {"a": (8,), "b": (8,), "c": (3, 8), "d": (3, 1), "e": (1,)}


def test_key_value_heads_default_to_heads(config):
    assert config(**{"llama.attention.head_count_kv": None}).n_kv_heads == 4


@pytest.mark.parametrize(
    "keys, rope",
    [
        ({"type": "linear", "factor": 4.0}, Rope("linear", factor=4.0)),
        ({"factor": 2.0}, Rope("linear", factor=2.0)),
        ({"type": "none", "factor": 2.0}, Rope()),
    ],
)
def test_rope_scaling(config, keys, rope):
    assert (
        config(**{f"llama.rope.scaling.{key}": value for key, value in keys.items()}).ropes[0]
        == rope
    )


def test_the_older_key_of_linear_scaling(config):
    assert config(**{"llama.rope.scale_linear": 8.0}).ropes[0] == Rope("linear", factor=8.0)


def test_a_llama_that_slides_is_a_mistral(config):
    c = config(llama__attention__sliding_window=16)
    assert (c.model_type, c.windows) == ("mistral", (16, 16))


def test_unknown_rope_and_architecture_are_named(config):
    for kind in ("foo", "longrope"):  # the second without its factors
        with pytest.raises(UnknownRopeType, match=f"'{kind}'"):
            config(**{"llama.rope.scaling.type": kind})
    with pytest.raises(UnknownArchitecture, match=r"'bert', expected one of: .*llama"):
        config(general__architecture="bert")


@pytest.mark.parametrize(
    "key, content",
    [
        ("llama.expert_count", 8),
        ("llama.nextn_predict_layers", 1),
        ("llama.rope.dimension_sections", [16, 24, 24, 0]),
        ("llama.rope.scaling.attn_factor", 1.5),
        ("llama.rope.scaling.yarn_ext_factor", 0.5),
        ("llama.attention.causal", False),
        ("llama.logit_scale", 0.5),
    ],
)
def test_what_would_change_the_arithmetic_is_refused(config, key, content):
    with pytest.raises(UnsupportedConfig, match=key):
        config(**{key: content})


def test_values_that_say_nothing_are_none(config):
    """llama.cpp scales only by what is not 0, and loads sections of nothing."""
    scales = ("embedding_scale", "residual_scale", "logit_scale", "attention.scale")
    assert config(**{f"llama.{key}": 0.0 for key in scales}) == config()
    assert config(**{"llama.rope.dimension_sections": [0, 0, 0, 0]}) == config()


@pytest.mark.parametrize(
    "values, words",
    [
        ([16, 24, 24, 0], r"\[16, 24, 24, 0\], expected 0 in a llama"),
        ([1] * 9, "an array of 9 i32"),
        (["a"], "an array of 1 string"),
    ],
)
def test_an_array_is_shown_by_its_values(config, values, words):
    with pytest.raises(UnsupportedConfig, match=f"rope.dimension_sections is {words}"):
        config(**{"llama.rope.dimension_sections": values})


@pytest.mark.parametrize(
    "key, content",
    [
        ("llama.block_count", None),
        ("llama.block_count", "2"),
        ("llama.block_count", 0),
        ("llama.block_count", 2**32 - 1),
        ("llama.context_length", 0),
        ("llama.context_length", 2**32 - 1),
        ("llama.attention.head_count", 0),
        ("llama.attention.head_count", 3),
        ("llama.attention.head_count_kv", 3),
        ("llama.attention.layer_norm_rms_epsilon", float("nan")),
        ("llama.rope.freq_base", 0.0),
    ],
)
def test_impossible_dimensions_are_malformed(config, key, content):
    tracemalloc.start()
    with pytest.raises(MalformedFile):
        config(**{key: content})
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 << 20


def test_end_tokens_are_those_of_sequence_turn_and_message(tmp_path):
    path = tmp_path / "model.gguf"
    ids = {f"tokenizer.ggml.{n}_token_id": i for n, i in (("eos", 3), ("eot", 5), ("eom", 3))}
    path.write_bytes(encode(llama_metadata() | ids, SMALL))
    assert open_checkpoint(path).eos_token_ids == (3, 5)
