"""What tensors a checkpoint of each model type holds, and their shapes, as data."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Layout:
    """Names of one model type; the defaults are llama's.

    A bias is there (True), absent (False), or as the named key of config.json says. `qkv` is the
    one matrix of query, key and value. Norms of q and k are vectors of one head's length, of "full"
    length over all heads, [n_heads, head_dim] ("heads"), or one tensor for "each" head.
    """

    embedding: str = "model.embed_tokens"
    positions: str | None = None
    layer: str = "model.layers.{}."
    norms: tuple[str, ...] = ("input_layernorm", "post_attention_layernorm")
    norm_bias: bool = False
    norm_weight: bool = True
    attention: str = "self_attn."
    qkv: str | None = None
    output: str = "o_proj"
    qk_norms: tuple[str, ...] = ()
    qk_norm_of: str = "head"
    qk_norm_if: bool | str = True
    mlp: tuple[str, ...] = ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
    fused_gate: bool = False
    columns_first: bool = False  # matrices are stored [columns, rows]
    final_norm: str = "model.norm"
    head: str = "lm_head"
    head_bias: bool = False
    qkv_bias: bool | str = "attention_bias"
    output_bias: bool | str = "attention_bias"
    mlp_bias: bool | str = "mlp_bias"


FUSED_GATE = {"mlp": ("mlp.gate_up_proj", "mlp.down_proj"), "fused_gate": True}
Q_NORM = ("q_norm", "k_norm")
Q_LAYERNORM = ("q_layernorm", "k_layernorm")
USE_BIAS = {"qkv_bias": "use_bias", "output_bias": "use_bias", "mlp_bias": "use_bias"}
POST_NORMS = ("post_attention_layernorm", "post_feedforward_layernorm")
SANDWICH = ("input_layernorm", "pre_feedforward_layernorm", *POST_NORMS)

LAYOUTS = {
    "llama": Layout(),
    "mistral": Layout(),
    "ministral": Layout(),
    "ministral3": Layout(),
    "qwen2": Layout(qkv_bias=True, output_bias=False),
    "qwen3": Layout(qk_norms=Q_NORM),
    "gemma": Layout(),
    "gemma2": Layout(norms=SANDWICH),
    "gemma3_text": Layout(norms=SANDWICH, qk_norms=Q_NORM),
    "phi": Layout(
        norms=("input_layernorm",), norm_bias=True, output="dense", mlp=("mlp.fc1", "mlp.fc2"),
        qk_norms=Q_LAYERNORM, qk_norm_if="qk_layernorm", final_norm="model.final_layernorm",
        head_bias=True, qkv_bias=True, output_bias=True, mlp_bias=True,
    ),
    "phi3": Layout(qkv="qkv_proj", **FUSED_GATE),
    "granite": Layout(),
    "smollm3": Layout(),
    "olmo": Layout(norm_weight=False),
    "olmo2": Layout(norms=POST_NORMS, qk_norms=Q_NORM, qk_norm_of="full"),
    "olmo3": Layout(norms=POST_NORMS, qk_norms=Q_NORM, qk_norm_of="full"),
    "cohere": Layout(
        norms=("input_layernorm",), qk_norms=Q_NORM, qk_norm_of="heads", qk_norm_if="use_qk_norm"
    ),
    "cohere2": Layout(norms=("input_layernorm",)),
    "stablelm": Layout(
        norm_bias=True, qk_norms=Q_LAYERNORM, qk_norm_of="each", qk_norm_if="qk_layernorm",
        qkv_bias="use_qkv_bias", output_bias=False,
    ),
    "starcoder2": Layout(norm_bias=True, mlp=("mlp.c_fc", "mlp.c_proj"), **USE_BIAS),
    "gpt2": Layout(
        embedding="transformer.wte", positions="transformer.wpe", layer="transformer.h.{}.",
        norms=("ln_1", "ln_2"), norm_bias=True, attention="attn.", qkv="c_attn", output="c_proj",
        mlp=("mlp.c_fc", "mlp.c_proj"), columns_first=True, final_norm="transformer.ln_f",
        qkv_bias=True, output_bias=True, mlp_bias=True,
    ),
    "gpt_neox": Layout(
        embedding="gpt_neox.embed_in", layer="gpt_neox.layers.{}.", norm_bias=True,
        attention="attention.", qkv="query_key_value", output="dense",
        mlp=("mlp.dense_h_to_4h", "mlp.dense_4h_to_h"), final_norm="gpt_neox.final_layer_norm",
        head="embed_out", mlp_bias=True,
    ),
    "glm": Layout(output_bias=False, **FUSED_GATE),
    "glm4": Layout(
        norms=("input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm",
               "post_mlp_layernorm"),
        output_bias=False, **FUSED_GATE,
    ),
    "exaone4": Layout(norms=POST_NORMS, qk_norms=Q_NORM),
    "nemotron": Layout(norm_bias=True, mlp=("mlp.up_proj", "mlp.down_proj")),
    "ernie4_5": Layout(**USE_BIAS),
    "hunyuan_v1_dense": Layout(qk_norms=("query_layernorm", "key_layernorm")),
    "seed_oss": Layout(output_bias="attention_out_bias"),
    "apertus": Layout(
        norms=("attention_layernorm", "feedforward_layernorm"), qk_norms=Q_NORM,
        mlp=("mlp.up_proj", "mlp.down_proj"),
    ),
}  # fmt: skip


def tensor_shapes(config: dict) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor that a checkpoint of this config.json holds."""
    layout = LAYOUTS[config["model_type"]]
    dim = config.get("hidden_size") or config["n_embd"]
    ffn = config.get("n_inner") or config.get("intermediate_size") or 4 * dim
    heads = config.get("num_attention_heads") or config["n_head"]
    kv_heads = config.get("num_key_value_heads") or heads
    head_dim = config.get("head_dim") or dim // heads
    q, kv = heads * head_dim, kv_heads * head_dim

    def has(flag: bool | str) -> bool:
        return flag if isinstance(flag, bool) else bool(config.get(flag))

    shapes = {}

    def norm(name: str, *shape: int, bias: bool = layout.norm_bias) -> None:
        if layout.norm_weight:
            shapes[name + ".weight"] = shape
        if bias:
            shapes[name + ".bias"] = shape

    def linear(name: str, rows: int, columns: int, bias: bool) -> None:
        shapes[name + ".weight"] = (columns, rows) if layout.columns_first else (rows, columns)
        if bias:
            shapes[name + ".bias"] = (rows,)

    def qk_norm(name: str, n: int) -> None:
        if layout.qk_norm_of == "each":
            for head in range(n):
                norm(f"{name}.norms.{head}", head_dim, bias=False)
        else:
            shape = {"head": (head_dim,), "full": (n * head_dim,), "heads": (n, head_dim)}
            norm(name, *shape[layout.qk_norm_of])

    shapes[layout.embedding + ".weight"] = (config["vocab_size"], dim)
    if layout.positions:
        shapes[layout.positions + ".weight"] = (config["n_positions"], dim)
    for layer in range(config.get("num_hidden_layers") or config["n_layer"]):
        prefix = layout.layer.format(layer)
        attention = prefix + layout.attention
        one_norm = config["model_type"] == "stablelm" and config["use_parallel_residual"]
        for name in layout.norms[:1] if one_norm else layout.norms:
            norm(prefix + name, dim)
        parts = {"q_proj": q, "k_proj": kv, "v_proj": kv}
        for name, rows in ({layout.qkv: q + 2 * kv} if layout.qkv else parts).items():
            linear(attention + name, rows, dim, has(layout.qkv_bias))
        linear(attention + layout.output, dim, q, has(layout.output_bias))
        if layout.qk_norms and has(layout.qk_norm_if):
            qk_norm(attention + layout.qk_norms[0], heads)
            qk_norm(attention + layout.qk_norms[1], kv_heads)
        *inner, down = layout.mlp
        for name in inner:
            linear(prefix + name, 2 * ffn if layout.fused_gate else ffn, dim, has(layout.mlp_bias))
        linear(prefix + down, dim, ffn, has(layout.mlp_bias))
        if config.get("hidden_act") == "xielu":
            for name, shape in {"alpha_p": (1,), "alpha_n": (1,), "beta": (), "eps": ()}.items():
                shapes[f"{prefix}mlp.act_fn.{name}"] = shape
    norm(layout.final_norm, dim)
    if not config["tie_word_embeddings"]:
        shapes[layout.head + ".weight"] = (config["vocab_size"], dim)
    if layout.head_bias:
        shapes[layout.head + ".bias"] = (config["vocab_size"],)
    return shapes
