"""Config, family and tensors become a Plan: every name and every shape is checked here, once."""

from dataclasses import dataclass
from math import prod

import numpy as np

from rillm.checkpoint import Checkpoint, Config, Tensor
from rillm.engine._engine import HEAD_DIM_AT_MOST
from rillm.errors import MissingTensor, ShapeMismatch, UnexpectedTensor, UnsupportedConfig
from rillm.families.base import Family
from rillm.families.rope import inverse_frequencies
from rillm.weights.formats import choose, is_quantized
from rillm.weights.packing import Layout, Matrix, Part, head_rows, values_of, whole_rows

IGNORED_SUFFIXES = (".rotary_emb.inv_freq", ".attn_rot_embd")  # recomputed, never read


@dataclass(frozen=True)
class Layer:
    """Offsets of the norms, and the matrices of one layer."""

    attention_norm: int
    qkv: Matrix
    output: Matrix
    mlp_norm: int
    gate: Matrix
    up: Matrix
    down: Matrix


@dataclass(frozen=True)
class Plan:
    """What the engine runs: dimensions, offsets into the arena, matrices."""

    dim: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    ffn_dim: int
    vocab_size: int
    norm_eps: float
    attention_scale: float
    inverse_frequencies: int
    embedding: Matrix
    layers: tuple[Layer, ...]
    final_norm: int
    head: Matrix
    n_parameters: int

    @property
    def matrices(self) -> list[Matrix]:
        """Those read once a token, in order."""
        body = [m for x in self.layers for m in (x.qkv, x.output, x.gate, x.up, x.down)]
        return [*body, self.head]

    @property
    def n_segments(self) -> int:
        return sum(len(m.segments) for m in [self.embedding, *self.matrices])

    def kv_bytes_per_position(self, kv: str) -> int:
        width = -(-self.head_dim // 16) * 16
        return 2 * len(self.layers) * self.n_kv_heads * width * {"f32": 4, "f16": 2}[kv]


class Tensors:
    """The tensors of a checkpoint by slot; what is never asked for is an error at the end."""

    def __init__(self, checkpoint: Checkpoint, family: Family):
        is_gguf = checkpoint.format == "gguf"
        self.names = family.gguf_names if is_gguf else family.names
        self.tensors = dict(checkpoint.tensors)
        self.file = checkpoint.path
        self.unused = set(self.tensors)
        self.n_parameters = 0

    def find(self, slot: str, layer: int | None, shape: tuple[int, ...]) -> Tensor | None:
        """The tensor of a slot, or None; ShapeMismatch if it has another shape."""
        name = self._name(slot, layer)
        tensor = self.tensors.get(name)
        if tensor is not None and tensor.shape != shape:
            raise ShapeMismatch(
                f"{tensor.file}: tensor {name} has shape {tensor.shape}, "
                f"expected {shape} from the config"
            )
        self.unused.discard(name)
        return tensor

    def get(self, slot: str, layer: int | None, shape: tuple[int, ...]) -> Tensor:
        if (tensor := self.find(slot, layer, shape)) is None:
            raise MissingTensor(
                f"{self.file}: tensor {self._name(slot, layer)} of shape {shape} is missing: "
                "the file is incomplete, or its config belongs to another model"
            )
        self.n_parameters += prod(shape)
        return tensor

    def _name(self, slot: str, layer: int | None) -> str:
        weight, _, bias = slot.partition(".")
        name = self.names.get(weight, weight).format(layer)
        return name.removesuffix("weight") + "bias" if bias else name

    def check_all_used(self) -> None:
        rest = sorted(n for n in self.unused if not n.endswith(IGNORED_SUFFIXES))
        if rest:
            more = f" and {len(rest) - 3} more" if len(rest) > 3 else ""
            raise UnexpectedTensor(
                f"{self.file}: nobody uses {', '.join(rest[:3])}{more}: the config says another "
                "model (a bias or a layer too many?), so its logits would be wrong"
            )


def make_plan(checkpoint: Checkpoint, family: Family, weights: str, layout: Layout) -> Plan:
    """Plans where everything lies; nothing is allocated yet.

    Raises
    ------
    MissingTensor, UnexpectedTensor, ShapeMismatch, UnsupportedConfig
    """
    config = checkpoint.config
    if config.head_dim > HEAD_DIM_AT_MOST:
        raise UnsupportedConfig(
            f"{config.file}: head_dim is {config.head_dim}, expected at most {HEAD_DIM_AT_MOST}"
        )
    tensors = Tensors(checkpoint, family)
    quantized_file = any(is_quantized(t) for t in checkpoint.tensors.values())

    def part(slot, layer, n_rows, n_columns, rows=None, has_bias=False) -> Part:
        tensor = tensors.get(slot, layer, (n_rows, n_columns))
        bias = tensors.get(f"{slot}.bias", layer, (n_rows,)) if has_bias else None
        rows = whole_rows(n_rows) if rows is None else rows
        return Part(tensor, choose(weights, tensor, slot, quantized_file), rows, bias)

    def norm(slot, layer=None) -> int:
        return layout.vector(values_of(tensors.get(slot, layer, (config.dim,))))

    frequencies = layout.vector(_frequencies(config, tensors))
    pairs = family.gguf_pairs and checkpoint.format == "gguf"
    embedding = part("embedding", None, config.vocab_size, config.dim)
    embedding_matrix = layout.matrix(embedding)
    layers = [_layer(config, layout, part, norm, i, pairs) for i in range(config.n_layers)]
    final_norm = norm("final_norm")
    head = _head(config, tensors, part, layout, embedding, embedding_matrix)
    tensors.check_all_used()
    return Plan(
        dim=config.dim,
        n_heads=config.n_heads,
        n_kv_heads=config.n_kv_heads,
        head_dim=config.head_dim,
        ffn_dim=config.ffn_dim,
        vocab_size=config.vocab_size,
        norm_eps=config.norm_eps,
        attention_scale=float(np.float32(1 / np.sqrt(config.head_dim))),
        inverse_frequencies=frequencies,
        embedding=embedding_matrix,
        layers=tuple(layers),
        final_norm=final_norm,
        head=head,
        n_parameters=tensors.n_parameters,
    )


def _layer(config: Config, layout: Layout, part, norm, i: int, pairs: bool) -> Layer:
    dim, ffn, head_dim = config.dim, config.ffn_dim, config.head_dim
    q, kv = config.n_heads * head_dim, config.n_kv_heads * head_dim
    q_rows = head_rows(config.n_heads, head_dim, pairs)
    k_rows = head_rows(config.n_kv_heads, head_dim, pairs)
    v_rows = head_rows(config.n_kv_heads, head_dim)
    attention_bias, mlp_bias = config.attention_bias, config.mlp_bias
    attention_norm = norm("attention_norm", i)
    qkv = layout.matrix(
        part("q", i, q, dim, q_rows, attention_bias),
        part("k", i, kv, dim, k_rows, attention_bias),
        part("v", i, kv, dim, v_rows, attention_bias),
    )
    output = layout.matrix(part("output", i, dim, q, has_bias=attention_bias))
    mlp_norm = norm("mlp_norm", i)
    gate, up = layout.alternating(
        part("gate", i, ffn, dim, has_bias=mlp_bias), part("up", i, ffn, dim, has_bias=mlp_bias)
    )
    down = layout.matrix(part("down", i, dim, ffn, has_bias=mlp_bias))
    return Layer(attention_norm, qkv, output, mlp_norm, gate, up, down)


def _head(config, tensors: Tensors, part, layout: Layout, embedding: Part, shared: Matrix):
    """The output matrix: its own, or the embedding's. A tied model may carry an equal copy."""
    shape = (config.vocab_size, config.dim)
    if not config.tied:
        return layout.matrix(part("head", None, *shape))
    copy = tensors.find("head", None, shape)
    if copy is not None and not np.array_equal(copy.data, embedding.tensor.data):
        raise UnexpectedTensor(
            f"{copy.file}: tensor {copy.name} differs from the embedding, but the config ties "
            "them (tie_word_embeddings): one of the two is wrong"
        )
    return shared


def _frequencies(config: Config, tensors: Tensors) -> np.ndarray:
    factors = None
    if "rope_factors" in tensors.names:
        factors = tensors.find("rope_factors", None, (config.head_dim // 2,))
    factors = None if factors is None else values_of(factors)
    return inverse_frequencies(config.rope, config.head_dim, factors)
