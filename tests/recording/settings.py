"""Sizes, rotary embeddings and lengths that recorded cases share."""

SIZES = {
    "vocab_size": 97, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None,
}  # fmt: skip
EPSILONS = dict.fromkeys(  # large enough to be seen when missing
    ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_eps", "norm_epsilon"), 1e-3
)
SLIDING, FULL = "sliding_attention", "full_attention"

DEFAULT_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
LINEAR_ROPE = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
LLAMA3_ROPE = {  # head_dim 16: one wavelength below 64/4, two between, five above 64/1
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0,
    "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
}  # fmt: skip
YARN_ROPE = {  # head_dim 32: the ramp goes from pair 2.8 to 8.9 of 16
    "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0,
    "original_max_position_embeddings": 1024,
}  # fmt: skip
LONGROPE = {
    "rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 32,
    "short_factor": [1.0, 1.05, 1.1, 1.25, 1.5, 1.75],
    "long_factor": [1.0, 1.25, 2.0, 3.5, 6.0, 8.5],
}  # fmt: skip
LONGROPE_8 = LONGROPE | {
    "short_factor": [*LONGROPE["short_factor"], 2.0, 2.0],
    "long_factor": [*LONGROPE["long_factor"], 9.0, 12.0],
}

# Early rows, where errors are easy to follow, and late ones, past the windows' ends
POSITIONS = [*range(8), *range(30, 88)]
# Frequencies that depend on the length: around the original maximum of 32, and far past it
LENGTHS = {"lengths": [1, 16, 31, 32, 33, 34, 35, 40, 48, 56, 63, 64, 65, 80, 88]}
