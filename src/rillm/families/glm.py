"""GLM-4 (glm): Llama with biases on q, k, v, half of each head turning by interleaved pairs."""

from rillm.families.base import LLAMA_NAMES, Family, Key, without

FAMILY = Family(
    "glm",
    gguf="chatglm",
    gguf_pairs=True,
    names=without(LLAMA_NAMES, "gate", "up")
    | {"gate_up": "model.layers.{}.mlp.gate_up_proj.weight"},
    norm_epsilon=Key("rms_norm_eps", 1.5625e-07),
    attention_bias=Key("attention_bias", True),
    output_bias=False,
    mlp_bias=False,
    rotary_pairs=True,
    defaults={"head_dim": 128},
    rotary_share=Key("partial_rotary_factor", 0.5),
    sizes=(151552, 4096, 13696, 40, 32, 2, 131072),
)
