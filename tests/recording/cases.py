"""The recorded cases: which model types, with which settings, over which tokens."""

from recording.llama import LLAMA
from recording.settings import (
    DEFAULT_ROPE,
    FULL,
    LENGTHS,
    LLAMA3_ROPE,
    LONGROPE,
    LONGROPE_8,
    SLIDING,
    YARN_ROPE,
)


def phi3_longrope(original: int) -> dict:
    """A phi3 whose rotary embedding changes past `original` positions; 12 of 16 dimensions turn."""
    rope = LONGROPE | {"partial_rotary_factor": 0.75, "original_max_position_embeddings": original}
    at_top = {"original_max_position_embeddings": original}
    return at_top | {"rope_parameters": rope, "tie_word_embeddings": True}


# name -> (model_type, what differs from SIZES, further settings of the recording if any)
CASES = LLAMA | {
    "qwen2": ("qwen2", {}, {"config_v4": {"sliding_window": 4096}}),
    "qwen2_window": (
        "qwen2",
        {"num_hidden_layers": 3, "use_sliding_window": True, "sliding_window": 16,
         "max_window_layers": 1, "tie_word_embeddings": True},
    ),
    "qwen3": ("qwen3", {"head_dim": 16}, {"config_v4": {"sliding_window": None}}),
    "qwen3_head_dim": ("qwen3", {"head_dim": 32, "tie_word_embeddings": True}),
    "qwen3_window": (
        "qwen3",
        {"head_dim": 24, "attention_bias": True, "use_sliding_window": True, "sliding_window": 16,
         "max_window_layers": 1},
    ),
    "mistral": ("mistral", {"sliding_window": 16}),
    "mistral_full": ("mistral", {"sliding_window": None, "head_dim": 32}),
    "mistral_layer_types": (  # transformers then takes it for a ministral: windows by layer
        "mistral", {"sliding_window": 16, "layer_types": [FULL, SLIDING]}, {"config_v4": False},
    ),
    "ministral": (
        "ministral", {"head_dim": 16, "sliding_window": 16, "layer_types": [FULL, SLIDING]},
    ),
    "mistral_long": (
        "mistral",
        {"sliding_window": 40, "num_hidden_layers": 3, "hidden_size": 32,
         "max_position_embeddings": 512},
        {"positions": range(236, 300)},
    ),
    "gemma": ("gemma", {"hidden_size": 48, "head_dim": 32}),
    "gemma2": (
        "gemma2",
        {"head_dim": 32, "sliding_window": 16, "query_pre_attn_scalar": 24,
         "attn_logit_softcapping": 4.0, "final_logit_softcapping": 5.0},
    ),
    "gemma2_uncapped": (
        "gemma2",
        {"head_dim": 16, "sliding_window": 16, "layer_types": [FULL, SLIDING],
         "query_pre_attn_scalar": 16, "attn_logit_softcapping": None,
         "final_logit_softcapping": None, "attention_bias": True},
    ),
    "gemma3_text": (
        "gemma3_text",
        {"head_dim": 32, "sliding_window": 16, "num_hidden_layers": 4,
         "layer_types": [SLIDING, SLIDING, FULL, SLIDING], "query_pre_attn_scalar": 24},
        {"config_v4": {"sliding_window_pattern": 3}},
    ),
    "gemma3_text_linear": (
        "gemma3_text",
        {"head_dim": 32, "sliding_window": 16, "layer_types": [SLIDING, FULL],
         "query_pre_attn_scalar": 32, "rope_parameters": {
             FULL: {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
             SLIDING: DEFAULT_ROPE}},
        {"config_v4": {"sliding_window_pattern": 2}},
    ),
    "phi3": ("phi3", {}),
    "phi3_window": ("phi3", {"sliding_window": 16, "num_key_value_heads": 4}),
    "phi3_longrope": ("phi3", phi3_longrope(32), LENGTHS),
    "phi3_longrope_below": ("phi3", phi3_longrope(96)),
    "phi3_longrope_full": (  # all dimensions turn
        "phi3",
        {"rope_parameters": LONGROPE_8, "original_max_position_embeddings": 32,
         "num_key_value_heads": 1},
        LENGTHS | {"type_key": "type"},
    ),
    "granite": (
        "granite",
        {"embedding_multiplier": 3.0, "attention_multiplier": 0.2, "residual_multiplier": 0.5,
         "logits_scaling": 0.75},
    ),
    "granite_biases": (
        "granite",
        {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True,
         "embedding_multiplier": 12.0, "attention_multiplier": 0.0625,
         "residual_multiplier": 0.22, "logits_scaling": 2.0},
    ),
    "smollm3": ("smollm3", {"num_hidden_layers": 3, "no_rope_layers": [1, 0, 1]}),
    "smollm3_window": (
        "smollm3",
        {"no_rope_layer_interval": 2, "use_sliding_window": True, "sliding_window": 16,
         "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False},
    ),
    "olmo2": ("olmo2", {}),
    "olmo2_biases": ("olmo2", {"num_key_value_heads": 4, "attention_bias": True}),
    "olmo3": ("olmo3", {"num_hidden_layers": 4, "sliding_window": 16}),
    "olmo3_yarn": (
        "olmo3",
        {"sliding_window": 16, "layer_types": [SLIDING, FULL], "attention_bias": True,
         "hidden_size": 128, "max_position_embeddings": 4096,
         "rope_parameters": {
             FULL: YARN_ROPE | {"rope_theta": 5e5, "attention_factor": 1.2},
             SLIDING: DEFAULT_ROPE | {"rope_theta": 5e5}}},
    ),
    "olmo": ("olmo", {"clip_qkv": 1.5}),
    "olmo_tied": (
        "olmo", {"num_key_value_heads": 4, "attention_bias": True, "tie_word_embeddings": True},
    ),
    "cohere": ("cohere", {"logit_scale": 0.75}),
    "cohere_qk_norm": (
        "cohere",
        {"use_qk_norm": True, "attention_bias": True, "tie_word_embeddings": False,
         "logit_scale": 1.25},
    ),
    "cohere2": (
        "cohere2", {"num_hidden_layers": 4, "sliding_window": 16, "logit_scale": 0.75},
        {"config_v4": {"sliding_window_pattern": 4}},
    ),
    "cohere2_biases": (
        "cohere2",
        {"attention_bias": True, "sliding_window": 16, "layer_types": [FULL, SLIDING],
         "logit_scale": 1.5},
    ),
    "phi": ("phi", {}),
    "phi_qk_layernorm": (
        "phi", {"qk_layernorm": True, "num_key_value_heads": 4, "tie_word_embeddings": True},
    ),
    "stablelm": ("stablelm", {"use_qkv_bias": True}),
    "stablelm_parallel": ("stablelm", {"use_parallel_residual": True}),
    "stablelm_qk_layernorm": (
        "stablelm",
        {"qk_layernorm": True, "rope_parameters": DEFAULT_ROPE | {"partial_rotary_factor": 0.5}},
    ),
    "stablelm_parallel_qk_layernorm": (
        "stablelm",
        {"use_parallel_residual": True, "qk_layernorm": True, "use_qkv_bias": True,
         "tie_word_embeddings": True},
    ),
    "starcoder2": ("starcoder2", {"sliding_window": 16}),
    "starcoder2_no_bias": ("starcoder2", {"use_bias": False, "tie_word_embeddings": False}),
    "gpt_neox": ("gpt_neox", {}),
    "gpt_neox_sequential": (
        "gpt_neox",
        {"use_parallel_residual": False, "attention_bias": False, "hidden_act": "gelu_fast",
         "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0,
                             "partial_rotary_factor": 1.0}},
    ),
    "gpt2": ("gpt2", {}),
    "gpt2_scaled": (
        "gpt2",
        {"n_inner": 96, "scale_attn_by_inverse_layer_idx": True, "activation_function": "gelu",
         "tie_word_embeddings": False},
    ),
    "gpt2_unscaled": ("gpt2", {"scale_attn_weights": False, "n_inner": 96}),
    "glm": ("glm", {"head_dim": 32}),
    "glm_no_bias": ("glm", {"head_dim": 16, "attention_bias": False, "tie_word_embeddings": True}),
    "glm4": ("glm4", {"head_dim": 16}),
    "glm4_no_bias": ("glm4", {"head_dim": 32, "attention_bias": False}),
    "exaone4": ("exaone4", {"num_hidden_layers": 4, "sliding_window": 16}),
    "exaone4_full": (
        "exaone4",
        {"sliding_window": None, "layer_types": [FULL, FULL], "tie_word_embeddings": True,
         "rope_parameters": LLAMA3_ROPE},
    ),
    "nemotron": ("nemotron", {}),
    "nemotron_biases": (
        "nemotron",
        {"head_dim": 32, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    ),
    "ernie4_5": ("ernie4_5", {"head_dim": 16}),
    "ernie4_5_biases": (
        "ernie4_5", {"head_dim": 32, "use_bias": True, "tie_word_embeddings": False},
    ),
    "hunyuan_v1_dense": ("hunyuan_v1_dense", {"head_dim": 16}),
    "hunyuan_v1_dense_alpha": (
        "hunyuan_v1_dense",
        {"head_dim": 32, "attention_bias": True, "tie_word_embeddings": True,
         "rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "alpha": 1000.0,
                             "factor": 1.0, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0,
                             "mscale_all_dim": 1.0}},
        {"type_key": "type"},
    ),
    "seed_oss": ("seed_oss", {"head_dim": 32}),
    "seed_oss_biases": (
        "seed_oss",
        {"head_dim": 16, "attention_bias": False, "attention_out_bias": True, "mlp_bias": True,
         "tie_word_embeddings": True},
    ),
    "apertus": ("apertus", {"rope_parameters": LLAMA3_ROPE}),
    "apertus_biases": (
        "apertus",
        {"rope_parameters": DEFAULT_ROPE, "attention_bias": True, "tie_word_embeddings": True},
        {"config_v4": False},  # without rope_scaling it would mean llama3
    ),
    "ministral3": (
        "ministral3",
        {"head_dim": 32, "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 1e6, "factor": 8.0, "beta_fast": 8.0,
            "beta_slow": 0.25, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1,
            "original_max_position_embeddings": 32}},
    ),
    "ministral3_window": (
        "ministral3",
        {"head_dim": 16, "sliding_window": 16, "tie_word_embeddings": True, "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "mscale": 1.0,
            "mscale_all_dim": 0.5, "llama_4_scaling_beta": 0.25,
            "original_max_position_embeddings": 20}},
    ),
}  # fmt: skip
