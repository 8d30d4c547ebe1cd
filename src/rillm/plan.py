"""Config, family and tensors become a Plan: every name and every shape is checked here, once."""

from dataclasses import dataclass, replace

import numpy as np

from rillm.checkpoint import Checkpoint, Config
from rillm.checkpoint.rope_config import LEAST, MOST
from rillm.engine._engine import HEAD_DIM_AT_MOST, kv_bytes
from rillm.errors import MalformedFile, UnexpectedTensor, UnsupportedConfig
from rillm.families.rope import frequencies
from rillm.weights.formats import choose, is_quantized
from rillm.weights.packing import (
    Layout,
    Matrix,
    Part,
    head_rows,
    pad_heads,
    same_bytes,
    values_of,
    whole_rows,
)
from rillm.weights.tensors import Tensors


@dataclass(frozen=True)
class Norm:
    """A norm of `n` numbers: offsets of its vectors."""

    kind: str
    epsilon: float
    weight: int
    bias: int | None = None


@dataclass(frozen=True)
class Layer:
    """The norms and matrices of one layer; None where it has no such part."""

    attention_norm: Norm | None
    q_norm: Norm | None
    k_norm: Norm | None
    qkv: Matrix
    output: Matrix
    attention_post_norm: Norm | None
    mlp_norm: Norm | None
    gate: Matrix | None
    up: Matrix
    down: Matrix
    mlp_post_norm: Norm | None
    activation_parameters: int | None
    attention_scale: float
    rope: int
    window: int
    is_parallel: bool
    norms_whole_qk: bool
    norms_after_rope: bool


@dataclass(frozen=True)
class Plan:
    """What the engine runs: dimensions, offsets into the arena, matrices."""

    dim: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    ffn_dim: int
    vocab_size: int
    activation: str
    activation_format: str
    attention_softcap: float
    embedding_scale: float
    residual_scale: float
    logit_scale: float
    logit_softcap: float
    qkv_clip: float
    position_scale: float
    position_scale_context: int
    ropes: tuple[tuple[np.ndarray, float], ...]
    embedding: Matrix
    positions: Matrix | None
    layers: tuple[Layer, ...]
    final_norm: Norm
    head: Matrix
    n_parameters: int

    @property
    def matrices(self) -> list[Matrix]:
        """Those read once a token, in order."""
        body = [m for x in self.layers for m in (x.qkv, x.output, x.gate, x.up, x.down) if m]
        return [*body, self.head]

    @property
    def stage_bytes(self) -> dict[str, int]:
        """What each stage of a step reads of `matrices`."""
        read: dict[str, int] = dict.fromkeys(("heads", "output", "gate_up", "down"), 0)
        for x in self.layers:
            read["heads"] += x.qkv.n_bytes
            read["output"] += x.output.n_bytes
            read["gate_up"] += x.up.n_bytes + (x.gate.n_bytes if x.gate else 0)
            read["down"] += x.down.n_bytes
        return {**read, "logits": self.head.n_bytes}

    @property
    def n_segments(self) -> int:
        tables = [self.embedding, *([self.positions] if self.positions else [])]
        return sum(len(m.segments) for m in [*tables, *self.matrices])

    def kv_bytes_per_position(self, kv: str) -> int:
        return len(self.layers) * self.n_kv_heads * kv_bytes(kv, self.head_dim)


def make_plan(
    checkpoint: Checkpoint, weights: str, layout: Layout, activations: str = "int8"
) -> Plan:
    """Plans where everything lies; nothing is allocated yet.

    Raises
    ------
    MissingTensor, UnexpectedTensor, ShapeMismatch, UnsupportedConfig
    """
    return _Planner(checkpoint, weights, layout, activations).plan()


class _Planner:
    def __init__(self, checkpoint: Checkpoint, weights: str, layout: Layout, activations: str):
        self.config: Config = checkpoint.config
        self.family = self.config.arithmetic
        self.tensors = Tensors(checkpoint, self.family)
        self.layout = layout
        self.weights = weights
        self.activations = activations
        self.quantized_file = any(is_quantized(t) for t in checkpoint.tensors.values())
        self.pairs = self.family.rotary_pairs
        if self.config.head_dim > HEAD_DIM_AT_MOST:
            raise UnsupportedConfig(
                f"{self.config.file}: head_dim is {self.config.head_dim}, "
                f"expected at most {HEAD_DIM_AT_MOST}"
            )

    def plan(self) -> Plan:
        c, f, layout = self.config, self.family, self.layout
        embedding = self.part("embedding", None, c.vocab_size, c.dim)
        embedding_matrix = layout.matrix(embedding)
        positions = None
        if "positions" in self.tensors.names:
            positions = layout.matrix(self.part("positions", None, c.context_length, c.dim))
        layers = tuple(self.layer(i) for i in range(c.n_layers))
        final_norm = self.norm("final_norm", None, c.dim)
        head = self.head(embedding, embedding_matrix)
        ropes = self.ropes()
        self.tensors.check_all_used()
        return Plan(
            dim=c.dim,
            n_heads=c.n_heads,
            n_kv_heads=c.n_kv_heads,
            head_dim=c.head_dim,
            ffn_dim=c.ffn_dim,
            vocab_size=c.vocab_size,
            activation=f.activation,
            activation_format=self.activations,
            attention_softcap=f.attention_softcap or 0.0,
            embedding_scale=f.embedding_scale,
            residual_scale=f.residual_scale,
            logit_scale=f.logit_scale,
            logit_softcap=f.logit_softcap or 0.0,
            qkv_clip=f.qkv_clip or 0.0,
            position_scale=f.position_scale,
            position_scale_context=c.position_context,
            ropes=ropes,
            embedding=embedding_matrix,
            positions=positions,
            layers=layers,
            final_norm=final_norm,
            head=head,
            n_parameters=self.tensors.n_parameters,
        )

    def layer(self, i: int) -> Layer:
        c, f = self.config, self.family
        attention_norm = self.norm("attention_norm", i, c.dim)
        parallel = bool(f.parallel)
        mlp_norm = self.norm("mlp_norm", i, c.dim)
        if parallel and mlp_norm is None:
            mlp_norm = attention_norm
        gate, up = self.gate_up(i)
        parameters = None
        if "activation_parameters" in self.tensors.names:
            parameters = self.layout.vector(self.tensors.activation_parameters(i))
        return Layer(
            attention_norm=attention_norm,
            q_norm=self.qk_norm("q_norm", i, c.n_heads),
            k_norm=self.qk_norm("k_norm", i, c.n_kv_heads),
            qkv=self.qkv(i),
            output=self.matrix("output", i, c.dim, c.n_heads * c.head_dim, f.output_bias),
            attention_post_norm=self.norm("attention_post_norm", i, c.dim),
            mlp_norm=mlp_norm,
            gate=gate,
            up=up,
            down=self.matrix("down", i, c.dim, c.ffn_dim, f.mlp_bias),
            mlp_post_norm=self.norm("mlp_post_norm", i, c.dim),
            activation_parameters=parameters,
            attention_scale=self.attention_scale(i),
            rope=c.layer_ropes[i],
            window=c.windows[i],
            is_parallel=parallel,
            norms_whole_qk=f.qk_norm == "whole",
            norms_after_rope=f.qk_norm_after_rope,
        )

    def attention_scale(self, i: int) -> float:
        scale = self.family.attention_scale
        if scale is None or scale is True:
            scale = self.config.head_dim**-0.5
        elif scale is False:
            scale = 1.0
        return float(scale) / (i + 1 if self.family.scales_by_layer else 1)

    def part(self, slot, layer, n_rows, n_columns, rows=None, has_bias=False, of=None) -> Part:
        """Rows of the tensor of a slot; of: how many rows it has, where only some are taken."""
        all_rows = of or n_rows
        shape = (n_columns, all_rows) if self.family.transposed and layer is not None else None
        tensor = self.tensors.get(slot, layer, shape or (all_rows, n_columns))
        if shape:
            tensor = self.tensors.transposed(tensor)
        bias = self.tensors.get(f"{slot}.bias", layer, (all_rows,)) if has_bias else None
        rows = whole_rows(n_rows) if rows is None else rows
        return Part(tensor, choose(self.weights, tensor, slot, self.quantized_file), rows, bias)

    def matrix(self, slot, layer, n_rows, n_columns, has_bias) -> Matrix:
        return self.layout.matrix(self.part(slot, layer, n_rows, n_columns, None, has_bias))

    def qkv(self, i: int) -> Matrix:
        c, f = self.config, self.family
        q, kv, d = c.n_heads * c.head_dim, c.n_kv_heads * c.head_dim, c.head_dim
        turned = c.rotary_dim if self.pairs else 0
        fused = "qkv" in self.tensors.names
        by_head = fused and f.fused == "heads"
        starts = (0, d, 2 * d) if by_head else (0, q, q + kv) if fused else (0, 0, 0)
        parts = []
        for slot, start in zip("qkv", starts, strict=True):
            n_heads = c.n_heads if slot == "q" else c.n_kv_heads
            rows = head_rows(
                n_heads, d, 0 if slot == "v" else turned, start, 3 * d if by_head else d
            )
            name, all_rows = ("qkv", q + 2 * kv) if fused else (slot, n_heads * d)
            parts.append(self.part(name, i, n_heads * d, c.dim, rows, f.attention_bias, all_rows))
        return self.layout.matrix(*parts)

    def gate_up(self, i: int) -> tuple[Matrix | None, Matrix]:
        c, f = self.config, self.family
        if not f.gated:
            return None, self.matrix("up", i, c.ffn_dim, c.dim, f.mlp_bias)
        if "gate_up" in self.tensors.names:
            rows = whole_rows(c.ffn_dim)
            both = (rows, np.where(rows < 0, -1, rows + c.ffn_dim).astype(np.int32))
            parts = [
                self.part("gate_up", i, c.ffn_dim, c.dim, r, f.mlp_bias, 2 * c.ffn_dim)
                for r in both
            ]
        else:
            parts = [self.part(s, i, c.ffn_dim, c.dim, None, f.mlp_bias) for s in ("gate", "up")]
        return self.layout.alternating(*parts)

    def norm(self, slot: str, layer: int | None, n: int) -> Norm | None:
        f = self.family
        if slot not in self.tensors.names:
            return None
        weight, bias = np.ones(n, np.float32), None
        if f.norm_weight:
            weight = values_of(self.tensors.get(slot, layer, (n,))) + np.float32(f.norm_offset)
        if f.norm_bias:
            bias = self.layout.vector(values_of(self.tensors.get(f"{slot}.bias", layer, (n,))))
        return Norm(f.norm, f.norm_epsilon, self.layout.vector(weight), bias)

    def qk_norm(self, slot: str, layer: int, n_heads: int) -> Norm | None:
        """Weights for every head, laid out as heads are: padded, and turned pairs apart."""
        c, f = self.config, self.family
        if slot not in self.tensors.names:
            return None
        weight = self.tensors.qk_norm_weight(slot, layer, n_heads, c.head_dim, f.qk_norm)
        weight = weight + np.float32(f.norm_offset)
        rows = head_rows(n_heads, c.head_dim, c.rotary_dim if self.pairs else 0)
        bias = None
        if f.qk_norm_bias:
            biases = self.tensors.qk_norm_weight(
                f"{slot}.bias", layer, n_heads, c.head_dim, f.qk_norm
            )
            bias = self.layout.vector(pad_heads(biases, rows))
        return Norm(f.norm, f.norm_epsilon, self.layout.vector(pad_heads(weight, rows)), bias)

    def head(self, embedding: Part, shared: Matrix) -> Matrix:
        """The output matrix: its own, or the embedding's. A tied model may carry an equal copy."""
        c = self.config
        shape = (c.vocab_size, c.dim)
        tied = self.family.tied
        if tied is None:  # what says so and what does not: as the tensors have it
            tied = not self.tensors.has("head")
        if not tied:
            return self.matrix("head", None, *shape, self.family.head_bias)
        copy = self.tensors.find("head", None, shape)
        if copy is not None and not same_bytes(copy.data, embedding.tensor.data):
            raise UnexpectedTensor(
                f"{copy.file}: tensor {copy.name} differs from the embedding, but the config ties "
                "them (tie_word_embeddings): one of the two is wrong"
            )
        if not self.family.head_bias:
            return shared
        bias = values_of(self.tensors.get("head.bias", None, (c.vocab_size,)))
        return replace(shared, bias=self.layout.vector(np.pad(bias, (0, -len(bias) % 16))))

    def ropes(self) -> tuple[tuple[np.ndarray, float], ...]:
        n, factors = self.config.rotary_dim, None
        if "rope_factors" in self.tensors.names:
            tensor = self.tensors.find("rope_factors", None, (n // 2,))
            factors = None if tensor is None else values_of(tensor)
            if tensor and not all(LEAST <= factor <= MOST for factor in factors):
                raise MalformedFile(
                    f"{tensor.file}: tensor {tensor.name} holds numbers from {factors.min()} to "
                    f"{factors.max()}, expected them from {LEAST:g} to {MOST:g}"
                )
        return tuple(frequencies(rope, n, factors=factors) for rope in self.config.ropes)


def ropes_for(config: Config, length: int) -> tuple[tuple[np.ndarray, float], ...]:
    """The turns of a text of `length` positions, where they depend on it."""
    return tuple(frequencies(rope, config.rotary_dim, length) for rope in config.ropes)
