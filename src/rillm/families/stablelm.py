"""StableLM: Llama with LayerNorm, a quarter of each head turning, maybe in parallel."""

from rillm.families.base import LLAMA_NAMES, Family, Key, without

FAMILY = Family(
    "stablelm",
    gguf="stablelm",
    names=without(LLAMA_NAMES, "mlp_norm"),
    names_unless={"use_parallel_residual": {"mlp_norm": LLAMA_NAMES["mlp_norm"]}},
    names_if={
        "qk_layernorm": {
            "q_norm": "model.layers.{}.self_attn.q_layernorm.norms.{part}.weight",
            "k_norm": "model.layers.{}.self_attn.k_layernorm.norms.{part}.weight",
        }
    },
    norm="layer",
    norm_bias=True,
    norm_epsilon=Key("layer_norm_eps", 1e-5),
    qk_norm="heads",
    attention_bias=Key("use_qkv_bias", False),
    output_bias=False,
    mlp_bias=False,
    parallel=Key("use_parallel_residual", False),
    rotary_share=Key("partial_rotary_factor", 0.25),
    sizes=(50304, 2560, 6912, 32, 32, 32, 4096),
)
