"""A family is data: what a model type's tensors are called, and which arithmetic they enter.

Wherever a field may be a `Key`, its value is read from config.json; else it is the same for all
models of the type. Which slots have a name decides which norms and matrices a layer has.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rillm.checkpoint.keys import Keys


@dataclass(frozen=True)
class Key:
    """A value of config.json: raw[name] ** power, or `default` where it is absent or null."""

    name: str
    default: Any = None
    power: float = 1


# slot -> name in a Hugging Face folder; {} is the layer. A bias is named after its weight.
LLAMA_NAMES = {
    "embedding": "model.embed_tokens.weight",
    "attention_norm": "model.layers.{}.input_layernorm.weight",
    "q": "model.layers.{}.self_attn.q_proj.weight",
    "k": "model.layers.{}.self_attn.k_proj.weight",
    "v": "model.layers.{}.self_attn.v_proj.weight",
    "output": "model.layers.{}.self_attn.o_proj.weight",
    "mlp_norm": "model.layers.{}.post_attention_layernorm.weight",
    "gate": "model.layers.{}.mlp.gate_proj.weight",
    "up": "model.layers.{}.mlp.up_proj.weight",
    "down": "model.layers.{}.mlp.down_proj.weight",
    "final_norm": "model.norm.weight",
    "head": "lm_head.weight",
}
QK_NORM_NAMES = {
    "q_norm": "model.layers.{}.self_attn.q_norm.weight",
    "k_norm": "model.layers.{}.self_attn.k_norm.weight",
}
# norms of what attention and MLP add, instead of or beside those of what they read
POST_NORM_NAMES = {
    "attention_post_norm": "model.layers.{}.post_attention_layernorm.weight",
    "mlp_post_norm": "model.layers.{}.post_feedforward_layernorm.weight",
}

# slot -> name in a GGUF file, of whichever slots a model has
GGUF_NAMES = {
    "embedding": "token_embd.weight",
    "positions": "position_embd.weight",
    "attention_norm": "blk.{}.attn_norm.weight",
    "qkv": "blk.{}.attn_qkv.weight",
    "q": "blk.{}.attn_q.weight",
    "k": "blk.{}.attn_k.weight",
    "v": "blk.{}.attn_v.weight",
    "q_norm": "blk.{}.attn_q_norm.weight",
    "k_norm": "blk.{}.attn_k_norm.weight",
    "output": "blk.{}.attn_output.weight",
    "attention_post_norm": "blk.{}.post_attention_norm.weight",
    "mlp_norm": "blk.{}.ffn_norm.weight",
    "gate": "blk.{}.ffn_gate.weight",
    "gate_up": "blk.{}.ffn_up.weight",
    "up": "blk.{}.ffn_up.weight",
    "activation_parameters": "blk.{}.xielu.{part}",
    "down": "blk.{}.ffn_down.weight",
    "mlp_post_norm": "blk.{}.post_ffw_norm.weight",
    "final_norm": "output_norm.weight",
    "head": "output.weight",
    "rope_factors": "rope_freqs.weight",
}


def without(names: Mapping[str, str], *slots: str) -> dict[str, str]:
    """The names without some slots."""
    return {slot: name for slot, name in names.items() if slot not in slots}


def all_but_every(key: str, default: int) -> "Callable[[Keys, int], list[bool]]":
    """Layers that slide: all but each n-th, n being a key's value."""

    def sliding_layers(keys, n_layers):
        every = keys.count(key, default)
        return [(i + 1) % every != 0 for i in range(n_layers)]

    return sliding_layers


SIZES = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
         "num_attention_heads", "num_key_value_heads", "max_position_embeddings")  # fmt: skip


@dataclass(frozen=True)
class Family:
    """One model type; the defaults are Llama's.

    Attributes
    ----------
    names : mapping
        Slot to tensor name. Slots beside `LLAMA_NAMES`: q_norm, k_norm, attention_post_norm,
        mlp_post_norm, qkv (instead of q, k, v), gate_up (instead of gate, up), positions,
        activation_parameters. A layer without gate applies the activation to up alone.
    gguf : str or None
        general.architecture of GGUF files; None: not read from GGUF.
    gguf_if : str or None
        Of the types that share an architecture, the one whose key of the metadata is not 0.
    gguf_pairs : bool
        GGUF files hold the pairs of a turn side by side.
    gguf_keys : mapping
        Key of config.json to the metadata's, where it is this type's own.
    gguf_names : mapping
        What differs from `GGUF_NAMES`.
    gguf_omits : callable(config.json as dict) -> dict, or None
        What a config.json of the type says beside that, but its GGUF files do not.
    config_keys : mapping
        Llama's key to the one by which this type's config.json calls it.
    norm : str
        "rms" or "layer".
    norm_offset : float
        What is added to norm weights: 1 where files store w − 1.
    norm_epsilon : Key or float
    norm_bias, norm_weight : bool
        Whether the norms have such vectors.
    qk_norm : str
        Of q and k where they are named: "head" (one weight for all heads), "heads" (one each), or
        "whole" (over all heads together). qk_norm_after_rope: turned first. qk_norm_bias: with one.
    attention_bias, output_bias, mlp_bias, head_bias : Key or bool
        Of q, k, v; of the output; of the MLP; of the head.
    activation : Key or str
        A name of `ACTIVATIONS`. activation_names: those that mean another one here.
    tied : Key, bool or None
        The head is the embedding; None: if there is no other.
    parallel : Key or bool
        Attention and MLP read the same x.
    rotary_pairs : bool
        Files hold the pairs of a turn side by side (interleaved), not half a head apart.
    rotary_share : Key or float
        The part of a head that turns.
    rope_layers : callable(keys of config.json, sliding layers) -> sequence of bool, or None: all.
    rope_kinds : mapping
        Rope types by which this one's config.json means another.
    rope_original_context : int or None
        Positions of the training before scaling, where no key says; None: those of the context.
    sliding_theta : Key or None
        Where layers slide they turn plainly, by this theta, unless rope_parameters name them.
    position_scale : Key or float
        Of queries far out, in rope_parameters: 1 + it * log(1 + position // original context).
    window : Key or None
        Positions that a sliding layer sees, its own included. window_if: a flag that asks for it.
    sliding_layers : callable(keys of config.json, n_layers) -> sequence of bool
        Which layers slide; default: as layer_types says, else all.
    reads_layer_types : bool
        Whether layer_types says so, in a type whose layers slide.
    fused : str
        How rows of qkv follow: "blocks" (all q, all k, all v) or "heads" (q, k, v of each head).
    transposed : bool
        Matrices of layers are stored [columns, rows].
    scales_by_layer : Key or bool
        Layer i divides its scores by i + 1.
    names_if, names_unless : mapping
        A flag of config.json to the names that a model has where it is true, or is not.
    sizes : tuple
        Values of `SIZES` in transformers' config class, of which a multimodal config.json leaves
        out those that are the same; the last two may be missing in any.
    defaults : mapping
        Values of other keys that a config.json may leave out (null is not leaving out).
    rope_defaults : mapping
        rope_parameters where neither they nor rope_scaling are given.
    refused : mapping
        Keys of config.json and the only values that are computed.
    """

    model_type: str
    names: Mapping[str, str] = field(default_factory=lambda: LLAMA_NAMES)
    gguf: str | None = None
    gguf_if: str | None = None
    gguf_pairs: bool = False
    gguf_keys: Mapping[str, str] = field(default_factory=dict)
    gguf_names: Mapping[str, str] = field(default_factory=dict)
    gguf_omits: Callable[[dict], dict] | None = None
    config_keys: Mapping[str, str] = field(default_factory=dict)
    norm: str = "rms"
    norm_offset: float = 0.0
    norm_epsilon: Key | float = Key("rms_norm_eps", 1e-6)
    norm_bias: bool = False
    norm_weight: bool = True
    qk_norm: str = "head"
    qk_norm_after_rope: bool = False
    attention_bias: Key | bool = Key("attention_bias", False)
    output_bias: Key | bool = Key("attention_bias", False)
    mlp_bias: Key | bool = Key("mlp_bias", False)
    head_bias: Key | bool = False
    activation: Key | str = Key("hidden_act", "silu")
    activation_names: Mapping[str, str] = field(default_factory=dict)
    tied: Key | bool | None = Key("tie_word_embeddings", False)
    parallel: Key | bool = False
    rotary_pairs: bool = False
    rotary_share: Key | float = 1.0
    rope_theta: float | None = 10000.0
    rope_layers: "Callable[[Keys, list[bool]], list[bool]] | None" = None
    rope_kinds: Mapping[str, str] = field(default_factory=dict)
    rope_original_context: int | None = None
    sliding_theta: Key | None = None
    position_scale: Key | float = 0.0
    window: Key | None = None
    window_if: str | None = None
    sliding_layers: "Callable[[Keys, int], list[bool]] | None" = None
    reads_layer_types: bool = True
    attention_scale: Key | float | None = None
    attention_softcap: Key | float = 0.0
    embedding_scale: Key | float = 1.0
    residual_scale: Key | float = 1.0
    logit_scale: Key | float = 1.0
    logit_softcap: Key | float = 0.0
    qkv_clip: Key | float = 0.0
    fused: str = "blocks"
    transposed: bool = False
    scales_by_layer: Key | bool = False
    qk_norm_bias: bool = False
    names_if: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    names_unless: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    sizes: tuple[int | None, ...] = (32000, 4096, 11008, 32, 32, None, 2048)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    rope_defaults: Mapping[str, Any] = field(default_factory=dict)
    refused: Mapping[str, Any] = field(default_factory=dict)

    @property
    def gated(self) -> bool:
        """The MLP multiplies activation(gate) by up."""
        return "gate" in self.names or "gate_up" in self.names
