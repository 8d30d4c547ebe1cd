"""The formulas of the house in their plainest form, in float64 NumPy and Python integers.

The transformer over a whole sequence at once, the integer formats and the sampling noise: slow,
sharing nothing with the engine that tests hold to them.
"""

import math

import numpy as np

GROUP = 32


def rope_parameters(config: dict) -> dict:
    """Rope settings of a config.json of transformers 5, or of 4 (rope_theta, rope_scaling)."""
    if "rope_parameters" in config:
        return config["rope_parameters"]
    scaling = config.get("rope_scaling") or {}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    return {**scaling, "rope_type": kind, "rope_theta": config.get("rope_theta", 10000.0)}


def rope_frequencies(config: dict, head_dim: int) -> np.ndarray:
    """Radians per position of each pair: float32 [head_dim / 2] (Su et al., arXiv 2104.09864).

    llama3: a wavelength above original / low_freq_factor is stretched by `factor`, one below
    original / high_freq_factor is kept, one between gets a blend that is linear in 1 / wavelength.
    """
    rope = rope_parameters(config)
    frequencies = 1.0 / rope["rope_theta"] ** (np.arange(0, head_dim, 2) / head_dim)
    if rope["rope_type"] == "linear":
        frequencies = frequencies / rope["factor"]
    elif rope["rope_type"] == "llama3":
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        turns = rope["original_max_position_embeddings"] * frequencies / (2 * np.pi)
        kept = np.clip((turns - low) / (high - low), 0, 1)
        frequencies = kept * frequencies + (1 - kept) * frequencies / rope["factor"]
    elif rope["rope_type"] != "default":
        raise ValueError(f"rope type {rope['rope_type']!r}")
    return frequencies.astype(np.float32)


def rotate(x: np.ndarray, angles: np.ndarray) -> np.ndarray:
    """Turn pairs (i, i + head_dim / 2) of x [n, heads, head_dim] by angles [n, head_dim / 2]."""
    first, second = np.split(x, 2, axis=-1)
    cos, sin = np.cos(angles)[:, None, :], np.sin(angles)[:, None, :]
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def rms_norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    """Each row of x divided by its root mean square, times weight (arXiv 1910.07467)."""
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight


def silu(x: np.ndarray) -> np.ndarray:
    """x times its logistic function."""
    return x / (1 + np.exp(-x))


def softmax(x: np.ndarray) -> np.ndarray:
    """exp(x), normalized over the last axis."""
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Causal attention of q [n, heads, head_dim] over k and v [n, kv_heads, head_dim], like q."""
    n, heads, head_dim = q.shape
    k, v = (np.repeat(x, heads // x.shape[1], axis=1) for x in (k, v))
    scores = np.einsum("qhd,khd->hqk", q, k) / math.sqrt(head_dim)
    scores[:, ~np.tri(n, dtype=bool)] = -np.inf
    return np.einsum("hqk,khd->qhd", softmax(scores), v)


def logits(
    config: dict,
    tensors: dict[str, np.ndarray],
    tokens: list[int],
    positions: np.ndarray | None = None,
) -> np.ndarray:
    """Logits of a llama-family model at every position.

    Parameters
    ----------
    config : a config.json
    tensors : the checkpoint's tensors by name
    tokens : [n] ids
    positions : [n] ascending; default: 0 .. n - 1

    Returns
    -------
    float64 [n, vocab_size]
    """
    tensors = {name: values.astype(np.float64) for name, values in tensors.items()}
    n, eps = len(tokens), config["rms_norm_eps"]
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    frequencies = rope_frequencies(config, head_dim)
    # the angle is a float32 product, as in transformers
    positions = np.arange(n) if positions is None else positions
    angles = positions.astype(np.float32)[:, None] * frequencies
    angles = angles.astype(np.float64)

    def linear(name: str, x: np.ndarray) -> np.ndarray:
        return x @ tensors[name + ".weight"].T + tensors.get(name + ".bias", 0.0)

    def split_heads(x: np.ndarray) -> np.ndarray:
        return x.reshape(n, -1, head_dim)

    embedding = tensors["model.embed_tokens.weight"]
    hidden = embedding[np.asarray(tokens)]
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        x = rms_norm(hidden, tensors[prefix + "input_layernorm.weight"], eps)
        q = rotate(split_heads(linear(prefix + "self_attn.q_proj", x)), angles)
        k = rotate(split_heads(linear(prefix + "self_attn.k_proj", x)), angles)
        v = split_heads(linear(prefix + "self_attn.v_proj", x))
        mixed = attention(q, k, v).reshape(n, heads * head_dim)
        hidden = hidden + linear(prefix + "self_attn.o_proj", mixed)
        x = rms_norm(hidden, tensors[prefix + "post_attention_layernorm.weight"], eps)
        gated = silu(linear(prefix + "mlp.gate_proj", x)) * linear(prefix + "mlp.up_proj", x)
        hidden = hidden + linear(prefix + "mlp.down_proj", gated)
    hidden = rms_norm(hidden, tensors["model.norm.weight"], eps)
    return hidden @ (embedding if config["tie_word_embeddings"] else tensors["lm_head.weight"]).T


def quantize_activation(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Int8 [n] in [-127, 127] and float32 scales [n / 32] of float32 x [n], n a multiple of 32.

    Every operation is one float32 rounding. A group whose largest value is below 2^-100 is zeros
    with scale 0.
    """
    groups = np.asarray(x, np.float32).reshape(-1, GROUP)
    largest = np.abs(groups).max(axis=1, keepdims=True)
    empty = largest < np.float32(2.0**-100)
    largest = np.where(empty, np.float32(127), largest)
    q = np.rint(groups * (np.float32(127) / largest))
    scales = largest / np.float32(127)
    q, scales = np.where(empty, 0, q), np.where(empty, np.float32(0), scales)
    return q.astype(np.int8).reshape(-1), scales.reshape(-1)


def dequantize(kind: str, data: bytes, shape: tuple[int, ...]) -> np.ndarray:
    """Float32 values of a GGUF tensor: F32, F16, BF16, Q8_0, Q4_0 or Q4_1.

    A block holds 32 columns: a float16 scale d (Q4_1: and minimum m), then q as int8, or as 16
    bytes with columns 0-15 in the low and 16-31 in the high nibbles. Values are d q in Q8_0,
    d (q - 8) in Q4_0, d q + m in Q4_1. d q is exact in float32: fused or not, one rounding at most.
    """
    data = np.frombuffer(data, np.uint8)
    if kind in ("F32", "F16"):
        return data.view({"F32": "<f4", "F16": "<f2"}[kind]).astype(np.float32).reshape(shape)
    if kind == "BF16":
        return (data.view("<u2").astype(np.uint32) << np.uint32(16)).view(np.float32).reshape(shape)
    blocks = data.reshape(-1, {"Q8_0": 34, "Q4_0": 18, "Q4_1": 20}[kind])
    d = blocks[:, :2].copy().view("<f2").astype(np.float32)
    if kind == "Q8_0":
        return (d * blocks[:, 2:].view(np.int8).astype(np.float32)).reshape(shape)
    packed = blocks[:, -16:]
    q = np.concatenate([packed & 15, packed >> 4], axis=1).astype(np.float32)
    if kind == "Q4_0":
        return (d * (q - 8)).reshape(shape)
    m = blocks[:, 2:4].copy().view("<f2").astype(np.float32)
    return (d * q + m).reshape(shape)


def philox4x32_10(key: tuple[int, int], counter: tuple[int, int, int, int]) -> tuple[int, ...]:
    """Four 32-bit words of Philox 4x32-10 (Salmon et al., SC11, "Parallel random numbers")."""
    (k0, k1), (c0, c1, c2, c3) = key, counter
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = p1 >> 32 ^ c1 ^ k0, p1 % 2**32, p0 >> 32 ^ c3 ^ k1, p0 % 2**32
        k0, k1 = (k0 + 0x9E3779B9) % 2**32, (k1 + 0xBB67AE85) % 2**32
    return c0, c1, c2, c3


def gumbel(token_id: int, index: int, completion: int, seed: int) -> float:
    """Gumbel noise of one token: -log(-log1p(-v)), v the token's own 32-bit uniform.

    `index` counts tokens the session ever held, `completion` the completions; the last counter word
    is the purpose, 0 for Gumbel noise.
    """
    words = philox4x32_10((seed % 2**32, seed >> 32), (token_id // 4, index, completion, 0))
    v = (words[token_id % 4] + 0.5) * 2.0**-32
    return -math.log(-math.log1p(-v))
