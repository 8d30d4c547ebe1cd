"""A family is data: what the tensors of a model type are called, and how they are laid out."""

from collections.abc import Mapping
from dataclasses import dataclass, field

# slot -> name in a Hugging Face folder; {} is the layer. Biases are named after their weights.
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

# slot -> name in a GGUF file
GGUF_NAMES = {
    "embedding": "token_embd.weight",
    "attention_norm": "blk.{}.attn_norm.weight",
    "q": "blk.{}.attn_q.weight",
    "k": "blk.{}.attn_k.weight",
    "v": "blk.{}.attn_v.weight",
    "output": "blk.{}.attn_output.weight",
    "mlp_norm": "blk.{}.ffn_norm.weight",
    "gate": "blk.{}.ffn_gate.weight",
    "up": "blk.{}.ffn_up.weight",
    "down": "blk.{}.ffn_down.weight",
    "final_norm": "output_norm.weight",
    "head": "output.weight",
    "rope_factors": "rope_freqs.weight",
}


@dataclass(frozen=True)
class Family:
    """One model type.

    Attributes
    ----------
    model_type : str
        As config.json and GGUF's general.architecture name it.
    names, gguf_names : mapping
        Slot to tensor name, ``{}`` standing for the layer.
    gguf_pairs : bool
        GGUF files hold the rows of q and k as (i, i + half) pairs side by side.
    """

    model_type: str
    names: Mapping[str, str] = field(default_factory=lambda: LLAMA_NAMES)
    gguf_names: Mapping[str, str] = field(default_factory=lambda: GGUF_NAMES)
    gguf_pairs: bool = False
