"""Random-weight models of well-known shapes as GGUF files: the same bits for every engine."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np


@dataclass(frozen=True)
class Shape:
    """Sizes of a llama; context 8192."""

    dim: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    ffn_dim: int
    vocab_size: int


SHAPES = {
    "135m": Shape(576, 30, 9, 3, 64, 1536, 49152),  # SmolLM2-135M
    "270m": Shape(640, 18, 4, 1, 256, 2048, 262144),  # Gemma 3 270M's sizes
    "360m": Shape(960, 32, 15, 5, 64, 2560, 49152),  # SmolLM2-360M
    "0.6b": Shape(1024, 28, 16, 8, 128, 3072, 151936),  # Qwen3-0.6B's sizes
    "1b": Shape(2048, 16, 32, 8, 64, 8192, 128256),  # Llama-3.2-1B
}
BLOCKS = {  # columns and bytes of a block, and the largest code: one or two f16 scales, then codes
    "Q8_0": (32, 34, 127),
    "Q4_0": (32, 18, 8),
    "Q4_K": (256, 144, 15 * 63),
}


def write(folder: Path, shape_name: str, kind: str) -> Path:
    """The file of a shape in one kind, written unless it is there."""
    import gguf

    path = folder / f"{shape_name}-{kind}.gguf"
    if path.exists():
        return path
    shape, rng = SHAPES[shape_name], np.random.default_rng(1)
    part = path.with_suffix(".part")
    writer = gguf.GGUFWriter(part, "llama")
    writer.add_block_count(shape.n_layers)
    writer.add_context_length(8192)
    writer.add_embedding_length(shape.dim)
    writer.add_feed_forward_length(shape.ffn_dim)
    writer.add_head_count(shape.n_heads)
    writer.add_head_count_kv(shape.n_kv_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(100000.0)
    writer.add_vocab_size(shape.vocab_size)
    writer.add_tokenizer_model("no_vocab")

    def matrix(name: str, n_rows: int, n_columns: int) -> None:
        block_columns, block_bytes, largest = BLOCKS[kind]
        blocks = rng.integers(0, 256, (n_rows, n_columns // block_columns, block_bytes), np.uint8)
        scale = np.frombuffer(np.float16(2.0 / (n_columns**0.5 * largest)).tobytes(), np.uint8)
        blocks[..., :2] = scale
        if kind == "Q4_K":
            blocks[..., 2:4] = scale  # of the minima
        if kind == "Q8_0":
            blocks[..., 2:][blocks[..., 2:] == 128] = 0  # −128 is in no file
        writer.add_tensor(
            name,
            blocks.reshape(n_rows, -1),
            raw_dtype=gguf.GGMLQuantizationType[kind],
        )

    def norm(name: str) -> None:
        writer.add_tensor(name, np.ones(shape.dim, np.float32))

    q, kv = shape.n_heads * shape.head_dim, shape.n_kv_heads * shape.head_dim
    matrix("token_embd.weight", shape.vocab_size, shape.dim)
    for i in range(shape.n_layers):
        norm(f"blk.{i}.attn_norm.weight")
        matrix(f"blk.{i}.attn_q.weight", q, shape.dim)
        matrix(f"blk.{i}.attn_k.weight", kv, shape.dim)
        matrix(f"blk.{i}.attn_v.weight", kv, shape.dim)
        matrix(f"blk.{i}.attn_output.weight", shape.dim, q)
        norm(f"blk.{i}.ffn_norm.weight")
        matrix(f"blk.{i}.ffn_gate.weight", shape.ffn_dim, shape.dim)
        matrix(f"blk.{i}.ffn_up.weight", shape.ffn_dim, shape.dim)
        matrix(f"blk.{i}.ffn_down.weight", shape.dim, shape.ffn_dim)
    norm("output_norm.weight")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    part.rename(path)
    return path
