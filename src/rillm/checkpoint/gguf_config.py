"""GGUF metadata of a llama becomes the same Config as a config.json."""

from collections.abc import Container

from rillm.checkpoint.config import Config, config_from_json
from rillm.checkpoint.metadata import Metadata
from rillm.checkpoint.rope_config import Rope
from rillm.errors import MalformedFile, UnknownRopeType, UnsupportedConfig
from rillm.families import family_of

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
    model_type = metadata.text("general.architecture")
    family_of(model_type, file)
    for name, none in _WITHOUT_EFFECT:
        get = {int: metadata.integer, float: metadata.number, bool: metadata.flag}[type(none)]
        if (value := get(key := f"{model_type}.{name}", none)) != none:
            raise UnsupportedConfig(f"{file}: {key} is {value}, expected {none}")

    def integer(name: str, *default: int) -> int:
        return metadata.integer(f"{model_type}.{name}", *default)

    dim, n_heads = integer("embedding_length"), integer("attention.head_count")
    head_dim = integer("attention.key_length", 0)
    for name in ("attention.value_length", "rope.dimension_count"):
        own = head_dim or (dim // n_heads if n_heads > 0 else 0)
        if (value := integer(name, own)) != own:
            raise UnsupportedConfig(
                f"{file}: {model_type}.{name} is {value}, expected the key length {own}"
            )
    ends = special_ids(metadata, _ENDS).values()
    raw = {
        "model_type": model_type,
        "vocab_size": vocab_size_of(metadata),
        "hidden_size": dim,
        "num_hidden_layers": integer("block_count"),
        "num_attention_heads": n_heads,
        "num_key_value_heads": integer("attention.head_count_kv", n_heads),
        "head_dim": head_dim or None,
        "intermediate_size": integer("feed_forward_length"),
        "rms_norm_eps": metadata.number(f"{model_type}.attention.layer_norm_rms_epsilon"),
        "tie_word_embeddings": "output.weight" not in tensor_names,
        "attention_bias": "blk.0.attn_q.bias" in tensor_names,
        "mlp_bias": "blk.0.ffn_up.bias" in tensor_names,
        "max_position_embeddings": integer("context_length"),
        "rope_parameters": _rope(metadata, model_type),
        "eos_token_id": list(dict.fromkeys(ends)),
        "bos_token_id": special_ids(metadata, ("bos",)).get("bos"),
    }
    return config_from_json(file, raw)


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


def _rope(metadata: Metadata, model_type: str) -> dict:
    theta = metadata.number(f"{model_type}.rope.freq_base", Rope.theta)
    factor = metadata.number(f"{model_type}.rope.scaling.factor", 0.0)
    factor = factor or metadata.number(f"{model_type}.rope.scale_linear", 0.0)  # the older key
    key = f"{model_type}.rope.scaling.type"
    kind = metadata.text(key, "linear" if factor else "none")
    if kind not in ("none", "linear"):
        raise UnknownRopeType(f"{metadata.file}: {key} is {kind!r}, expected 'none' or 'linear'")
    scaling = {"rope_type": "linear", "factor": factor} if kind == "linear" else {}
    return {"rope_theta": theta, **scaling}
