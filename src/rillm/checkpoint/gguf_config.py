"""GGUF metadata of a llama becomes the same Config as a config.json."""

from collections.abc import Container

from rillm.checkpoint.config import Config, Rope, check_model_type, even_share
from rillm.checkpoint.metadata import Metadata
from rillm.errors import MalformedFile, UnknownRopeType, UnsupportedConfig

# options of other members of the llama clan that change the arithmetic: (key, value of no effect)
_WITHOUT_EFFECT = (
    ("expert_count", 0),
    ("attention.sliding_window", 0),
    ("attention.causal", True),
    ("attention.scale", 0.0),
    ("attention.clamp_kqv", 0.0),
    ("embedding_scale", 1.0),
    ("residual_scale", 1.0),
    ("logit_scale", 1.0),
)
_ENDS = ("eos", "eot", "eom")  # end of sequence, of turn, of message
_SPECIAL = (*_ENDS, "bos", "unknown", "padding", "seperator", "cls", "mask")  # as GGUF spells them


def config_from_gguf(metadata: Metadata, tensor_names: Container[str]) -> Config:
    """What a config.json would say.

    Tied embeddings and biases are in GGUF a matter of which tensors there are. The llama3 kind of
    rotary scaling is the tensor ``rope_freqs.weight`` there (float32 [head_dim / 2], by which the
    frequencies are divided), so `rope` says "default" beside it.

    Raises
    ------
    MalformedFile, UnknownArchitecture, UnknownRopeType, UnsupportedConfig
    """
    file = metadata.file
    model_type = check_model_type(
        file, "general.architecture", metadata.text("general.architecture")
    )
    for name, none in _WITHOUT_EFFECT:
        get = {int: metadata.integer, float: metadata.number, bool: metadata.flag}[type(none)]
        if (value := get(key := f"{model_type}.{name}", none)) != none:
            raise UnsupportedConfig(f"{file}: {key} is {value}, expected {none}")

    def integer(name: str, *default: int) -> int:
        return metadata.integer(f"{model_type}.{name}", *default)

    dim, n_heads = integer("embedding_length"), integer("attention.head_count")
    head_dim = integer("attention.key_length", 0) or even_share(file, dim, n_heads)
    for name in ("attention.value_length", "rope.dimension_count"):
        if (value := integer(name, head_dim)) != head_dim:
            raise UnsupportedConfig(
                f"{file}: {model_type}.{name} is {value}, expected the key length {head_dim}"
            )
    vocab_size = vocab_size_of(metadata)
    return Config(
        file=file,
        model_type=model_type,
        vocab_size=vocab_size,
        dim=dim,
        n_layers=integer("block_count"),
        n_heads=n_heads,
        n_kv_heads=integer("attention.head_count_kv", n_heads),
        head_dim=head_dim,
        ffn_dim=integer("feed_forward_length"),
        norm_eps=metadata.number(f"{model_type}.attention.layer_norm_rms_epsilon"),
        activation="silu",
        tied="output.weight" not in tensor_names,
        attention_bias="blk.0.attn_q.bias" in tensor_names,
        mlp_bias="blk.0.ffn_up.bias" in tensor_names,
        context_length=integer("context_length"),
        rope=_rope(metadata, model_type),
        eos_token_ids=tuple(dict.fromkeys(special_ids(metadata, _ENDS).values())),
        bos_token_id=special_ids(metadata, ("bos",)).get("bos"),
    )


def vocab_size_of(metadata: Metadata) -> int:
    """The length of the token list; a file without a tokenizer states the number."""
    tokens = metadata.array("tokenizer.ggml.tokens", ("string",), None)
    if tokens is None:
        return metadata.integer(f"{metadata.text('general.architecture')}.vocab_size")
    return len(tokens)


def special_ids(metadata: Metadata, names: tuple[str, ...] = _SPECIAL) -> dict[str, int]:
    """The special token ids that are given; MalformedFile for one outside the vocabulary."""
    ids, vocab_size = {}, vocab_size_of(metadata)
    for name in names:
        key = f"tokenizer.ggml.{name}_token_id"
        if key in metadata:
            ids[name] = metadata.integer(key)
            if not 0 <= ids[name] < vocab_size:
                raise MalformedFile(
                    f"{metadata.file}: {key} is {ids[name]}, expected less than the vocabulary's "
                    f"{vocab_size}"
                )
    return ids


def _rope(metadata: Metadata, model_type: str) -> Rope:
    theta = metadata.number(f"{model_type}.rope.freq_base", Rope.theta)
    factor = metadata.number(f"{model_type}.rope.scaling.factor", 0.0)
    factor = factor or metadata.number(f"{model_type}.rope.scale_linear", 0.0)  # the older key
    key = f"{model_type}.rope.scaling.type"
    kind = metadata.text(key, "linear" if factor else "none")
    if kind not in ("none", "linear"):
        raise UnknownRopeType(f"{metadata.file}: {key} is {kind!r}, expected 'none' or 'linear'")
    return Rope("linear", theta, factor) if kind == "linear" else Rope(theta=theta)
