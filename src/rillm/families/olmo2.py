"""OLMo 2: norms only of what is added to x, and of q and k over all heads together."""

from rillm.families.base import LLAMA_NAMES, POST_NORM_NAMES, QK_NORM_NAMES, Family, Key, without

FAMILY = Family(
    "olmo2",
    gguf="olmo2",
    names=without(LLAMA_NAMES, "attention_norm", "mlp_norm") | POST_NORM_NAMES | QK_NORM_NAMES,
    norm_epsilon=Key("rms_norm_eps", 1e-5),
    qk_norm="whole",
    mlp_bias=False,
    sizes=(50304, 4096, 11008, 32, 32, None, 2048),
)
