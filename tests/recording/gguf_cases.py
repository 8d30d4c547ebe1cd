"""Which tiny checkpoints go through llama.cpp's converter: one or more of every model type.

A case changes what a GGUF file cannot say: it then says the same as the config.json.
"""

from recording.settings import FULL, SLIDING

HEAD_SCALE = {"query_pre_attn_scalar": 32}  # files leave it out: it is head_dim
ROTARY_PCT = {"rotary_pct": 0.25}  # which the converter still asks for

# name -> (fixture, changes of its config.json)
CASES = {
    "llama": ("base", {}),
    "llama_biases": ("biases", {}),
    "llama_head_dim": ("head_dim_24", {}),
    "llama_tied": ("tied", {}),
    "llama_linear": ("linear_rope", {}),
    "llama_llama3": ("llama3_rope", {}),
    "llama_yarn": ("llama_yarn", {}),
    "llama_yarn_attention_factor": ("llama_yarn_attention_factor", {}),
    "llama_yarn_betas": ("llama_yarn_betas", {}),
    "mistral": ("mistral_full", {}),
    "ministral3": ("ministral3", {}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3_head_dim", {}),
    "gemma": ("gemma", {}),
    "gemma2": ("gemma2", HEAD_SCALE),
    "gemma3_text": (
        "gemma3_text",
        HEAD_SCALE | {"num_hidden_layers": 7, "layer_types": [*[SLIDING] * 5, FULL, SLIDING]},
    ),
    "gemma3_text_linear": (
        "gemma3_text_linear",
        {"num_hidden_layers": 6, "layer_types": [*[SLIDING] * 5, FULL]},
    ),
    "phi": ("phi", {"num_key_value_heads": 4, "intermediate_size": 256}),
    "phi3": ("phi3_window", {}),
    "phi3_longrope": ("phi3_longrope", {}),
    "granite": ("granite", {}),
    "granite_biases": ("granite_biases", {}),
    "smollm3": (
        "smollm3",
        {"num_hidden_layers": 5, "no_rope_layers": [1, 1, 1, 0, 1], "layer_types": [FULL] * 5},
    ),
    "olmo": ("olmo", {}),
    "olmo2": ("olmo2", {}),
    "olmo3": ("olmo3", {}),
    "olmo3_yarn": ("olmo3_yarn", {}),
    "cohere": ("cohere", {}),
    "cohere_qk_norm": ("cohere_qk_norm", {"tie_word_embeddings": True}),
    "cohere2": ("cohere2", {"rotary_pct": 1.0}),
    "stablelm": ("stablelm", {}),
    "stablelm_parallel": ("stablelm_parallel", {}),
    "starcoder2": ("starcoder2", {"sliding_window": None}),
    "gpt_neox": ("gpt_neox", ROTARY_PCT),
    "gpt_neox_sequential": (
        "gpt_neox",
        ROTARY_PCT | {"use_parallel_residual": False, "attention_bias": True},
    ),
    "gpt2": ("gpt2", {"n_ctx": 256, "n_inner": 256}),
    "glm": ("glm_no_bias", {"attention_bias": True, "rms_norm_eps": 1e-5}),
    "glm4": ("glm4", {}),
    "exaone4": ("exaone4", {}),
    "exaone4_full": ("exaone4_full", {}),
    "nemotron": ("nemotron", {}),
    "nemotron_biases": ("nemotron_biases", {"hidden_size": 128}),
    "ernie4_5": ("ernie4_5", {}),
    "ernie4_5_biases": ("ernie4_5_biases", {}),
    "hunyuan_v1_dense": ("hunyuan_v1_dense", {}),
    "hunyuan_v1_dense_alpha": (
        "hunyuan_v1_dense_alpha",
        {"max_position_embeddings": 32768, "num_hidden_layers": 1},
    ),
    "seed_oss": ("seed_oss", {}),
    "seed_oss_biases": ("seed_oss_biases", {}),
    "apertus": ("apertus", {}),
}
