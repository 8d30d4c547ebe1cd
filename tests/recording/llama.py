"""The recorded cases of llama: its sizes, its biases and every rotary embedding."""

from recording.settings import (
    DEFAULT_ROPE,
    LENGTHS,
    LINEAR_ROPE,
    LLAMA3_ROPE,
    LONGROPE_8,
    YARN_ROPE,
)

YARN = {"head_dim": 32, "max_position_embeddings": 4096}
# Hidden states keep a large first component which no layer reads and the head takes times -2.
NEGATIVE = {"model.embed_tokens.weight": 8.0, "lm_head.weight": -2.0}
for norm in ("input_layernorm", "post_attention_layernorm"):
    NEGATIVE |= {f"model.layers.{layer}.{norm}.weight": 0.0 for layer in range(2)}


def yarn(**changes) -> tuple[str, dict]:
    """A llama with YaRN that differs in `changes`."""
    return "llama", YARN | {"rope_parameters": YARN_ROPE | changes}


LLAMA = {
    "base": ("llama", {"rms_norm_eps": 1e-3}),
    "biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "head_dim": ("llama", {"hidden_size": 48, "head_dim": 32}),
    "head_dim_24": ("llama", {"head_dim": 24}),
    "tied": ("llama", {"tie_word_embeddings": True}),
    "llama3_rope": ("llama", {"rope_parameters": LLAMA3_ROPE}),
    "linear_rope": ("llama", {"rope_parameters": LINEAR_ROPE}, {"type_key": "type"}),
    "theta": ("llama", {"rope_parameters": DEFAULT_ROPE | {"rope_theta": 5e5}}),
    "vocab_negative": ("llama", {"vocab_size": 101}, {"first_column": NEGATIVE}),
    "mha": ("llama", {"num_key_value_heads": 4}),
    "odd_sizes": ("llama", {"hidden_size": 40, "intermediate_size": 72, "vocab_size": 131}),
    "one_layer": ("llama", {"num_hidden_layers": 1}),
    "long": (
        "llama",
        {"num_hidden_layers": 1, "hidden_size": 32, "max_position_embeddings": 1024},
        {"positions": range(536, 600)},
    ),
    "llama_dynamic": (
        "llama",
        {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0},
         "max_position_embeddings": 32},
        LENGTHS,
    ),
    "llama_longrope": ("llama", {"rope_parameters": LONGROPE_8}, LENGTHS),
    "llama_yarn": yarn(),
    "llama_yarn_attention_factor": yarn(attention_factor=0.75, mscale=0.5, mscale_all_dim=1.0),
    "llama_yarn_mscale": yarn(mscale=2.0, mscale_all_dim=0.5),
    "llama_yarn_betas": yarn(beta_fast=8.0, beta_slow=2.0),
    "llama_yarn_untruncated": yarn(truncate=False),
}  # fmt: skip
