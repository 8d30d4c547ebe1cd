"""The oracles against the outside: transformers, the gguf package, Random123, exact integers."""

import hashlib
import json
import math
from fractions import Fraction

import numpy as np
import pytest

import reference
import weights

LLAMA_CASES = [
    "base", "biases", "head_dim", "head_dim_24", "tied", "llama3_rope", "linear_rope", "theta",
    "vocab_negative", "mha", "odd_sizes", "one_layer", "long",
]  # fmt: skip
OTHERS = ("rope", "samplers")  # fixtures that are no models
CASES = sorted(f.stem for f in weights.FIXTURES.glob("*.json") if f.stem not in OTHERS)


@pytest.mark.parametrize("name", LLAMA_CASES)
def test_logits_equal_transformers(name):
    case = weights.load_case(name)
    tensors = weights.make_tensors(case["config"], case.get("first_column"))
    ours = reference.logits(case["config"], tensors, case["tokens"])[case["positions"]]
    assert np.abs(ours - case["logits"]).max() <= 1e-4


@pytest.mark.parametrize("name", CASES)
def test_a_fixture_holds_64_rows_or_more(name):
    case = weights.load_case(name)
    lengths = case.get("lengths", [len(case["tokens"])] * len(case["positions"]))
    assert len(set(zip(lengths, case["positions"], strict=True))) >= 64
    assert case["logits"].shape == (len(lengths), case["config"]["vocab_size"])
    assert np.isfinite(case["logits"]).all()


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("llama3_rope", {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}),
        ("linear_rope", {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}),
        ("theta", {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}),
        ("base", {"rms_norm_eps": 1e-5}),
        ("base", {"num_hidden_layers": 1}),
    ],
)
def test_fixtures_notice_a_wrong_setting(name, changes):
    case = weights.load_case(name)
    tensors = weights.make_tensors(case["config"])
    wrong = reference.logits(case["config"] | changes, tensors, case["tokens"])[case["positions"]]
    assert np.abs(wrong - np.array(case["logits"])).max() > 0.05


def test_fixtures_notice_a_dropped_bias():
    case = weights.load_case("biases")
    tensors = weights.make_tensors(case["config"])
    biases = [name for name in tensors if name.endswith(".bias")]
    assert len(biases) == 2 * 7
    for name in biases:
        rest = {k: v for k, v in tensors.items() if k != name}
        wrong = reference.logits(case["config"], rest, case["tokens"])[case["positions"]]
        change = np.abs(wrong - np.array(case["logits"])).max()
        # softmax ignores what adds the same to every score: without RoPE a key bias would vanish
        assert change > 0.05, name


def test_llama3_fixture_has_all_three_bands():
    config = weights.load_case("llama3_rope")["config"]
    plain = 10000.0 ** (-np.arange(0, 16, 2) / 16)
    stretch = plain / reference.rope_frequencies(config, 16)
    assert (np.abs(stretch - 1) < 1e-6).any()
    assert (np.abs(stretch - 8) < 1e-5).any()
    assert ((stretch > 1.1) & (stretch < 7.9)).any()


def test_vocab_negative_fixture_is_negative():
    case = weights.load_case("vocab_negative")
    assert case["config"]["vocab_size"] % 16
    assert np.max(case["logits"]) < 0


@pytest.mark.parametrize("name", ["llama3_rope", "linear_rope", "theta"])
def test_v4_config_means_the_same(name):
    case = weights.load_case(name)
    head_dim = case["config"]["head_dim"]
    v4, v5 = (reference.rope_frequencies(case[key], head_dim) for key in ("config_v4", "config"))
    assert "rope_parameters" not in case["config_v4"]
    assert "rope_theta" not in (case["config_v4"]["rope_scaling"] or {})
    assert np.array_equal(v4, v5)


def test_splitmix64_known_answers():
    # Vigna's splitmix64.c and Java's SplittableRandom for seed 0
    expected = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F, 0xF88BB8A8724C81EC]
    assert weights.splitmix64(0, 4).tolist() == expected


def test_random_tensor_by_exact_integers():
    name, shape = "model.layers.0.mlp.up_proj.weight", (3, 5)
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
    expected = []
    for i in range(15):
        z = (seed + (i + 1) * 0x9E3779B97F4A7C15) % 2**64
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
        z ^= z >> 31
        exact = Fraction(2 * (z >> 40) + 1 - 2**24, 2**24) * Fraction(float(np.float32(0.1)))
        expected.append(np.float32(float(exact)))  # 48 bits: exact in float64, rounded once
    got = weights.random_tensor(name, shape, 0.1)
    assert got.dtype == np.float32
    assert got.shape == shape
    assert np.array_equal(got.reshape(-1), np.array(expected, np.float32))


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_written_model_reads_back(tmp_path, dtype):
    safetensors = pytest.importorskip("safetensors", reason="safetensors is not installed")
    tensors = weights.write_model(tmp_path, "base", dtype, shards=3)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())["weight_map"]
    assert set(index) == set(tensors)
    assert len(set(index.values())) == 3
    for file in set(index.values()):
        for name, entry in safetensors.deserialize((tmp_path / file).read_bytes()):
            assert index[name] == file
            assert entry["dtype"] == dtype
            read = reference.dequantize(dtype, bytes(entry["data"]), tuple(entry["shape"]))
            assert np.array_equal(read, tensors[name])


def test_bfloat16_rounds_to_nearest_even():
    values = np.array([1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20, -1 - 2**-9], np.float32)
    _, rounded = weights.encode(values, "BF16")
    assert rounded.tolist() == [1.0, 1 + 2**-6, 1 + 2**-7, -1.0]


def test_quantize_activation_rounds_to_nearest_even():
    x = np.zeros(96, np.float32)
    x[:6] = [127, 0.5, 1.5, 2.5, -2.5, -126.5]
    x[32:34] = [2.0**-101, -(2.0**-101)]  # below the threshold: zeros
    x[64:66] = [2.0**-100, -(2.0**-102)]  # at it: not
    q, scales = reference.quantize_activation(x)
    assert q[:6].tolist() == [127, 0, 2, 2, -2, -126]
    assert q[32:64].tolist() == [0] * 32
    assert q[64:66].tolist() == [127, -32]  # 127 / 4 = 31.75
    assert scales.tolist() == [1.0, 0.0, float(np.float32(2.0**-100) / np.float32(127))]


@pytest.mark.parametrize("amax", [0, 1e-45, 1e-38, 1e-8, 1, 1e4])
def test_ggml_org_llama_cpp_7313(amax):
    x = weights.random_tensor("activation", (1024,), 1.0) * np.float32(amax)
    q, scales = reference.quantize_activation(x)
    error = np.abs(q.reshape(-1, 32) * scales[:, None].astype(np.float64) - x.reshape(-1, 32))
    assert np.isfinite(error).all()
    assert error.max() <= 0.51 * amax / 127 + 127 * 2.0**-25


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1", "F16", "BF16", "F32"])
def test_dequantize_equals_gguf_package(kind):
    gguf = pytest.importorskip("gguf", reason="the gguf package is not installed")
    block, block_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    n_blocks = 6 * 64 // block
    raw = weights.random_integers("blocks", n_blocks * block_bytes) >> np.uint64(56)
    raw = raw.astype(np.uint8).reshape(n_blocks, block_bytes)
    if kind.startswith("Q"):
        raw[:, 1] &= 0xBF  # top exponent bit off: finite scales and minima
        raw[:, 3] &= 0xBF
    raw = raw.reshape(6, -1)
    expected = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[kind])
    got = reference.dequantize(kind, raw.tobytes(), (6, 64))
    assert np.array_equal(got, expected, equal_nan=True)


@pytest.mark.parametrize(
    ("key", "counter", "expected"),
    [  # Random123 1.14, tests/kat_vectors
        ("00000000" * 2, "00000000" * 4, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ("ffffffff" * 2, "ffffffff" * 4, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (
            "a4093822299f31d0",
            "243f6a8885a308d313198a2e03707344",
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ],
)
def test_philox_known_answers(key, counter, expected):
    def words(text):
        return tuple(int(text[i : i + 8], 16) for i in range(0, len(text), 8))

    assert reference.philox4x32_10(words(key), words(counter)) == words(expected.replace(" ", ""))


def test_gumbel_takes_its_own_word():
    first = [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]  # key and counter zero
    for token_id, word in enumerate(first):
        v = Fraction(2 * word + 1, 2**33)
        expected = -math.log(-math.log(1 - v))  # 1 - v is 33 bits: exact
        assert reference.gumbel(token_id, 0, 0, seed=0) == pytest.approx(expected, abs=1e-12)


def test_gumbel_has_the_gumbel_law():
    """Mean is Euler's constant, variance pi^2 / 6 (5 standard errors of 20,000 draws)."""
    draws = np.array([reference.gumbel(i, i // 7, 1, seed=2**40 + 3) for i in range(20_000)])
    assert abs(draws.mean() - 0.5772156649) < 5 * math.sqrt(math.pi**2 / 6 / 20_000)
    assert abs(draws.var() - math.pi**2 / 6) < 0.1
