"""Names inside multimodal checkpoints: the language model's, and what a text decoder leaves out."""

import re

_OTHER_PARTS = (
    "vision_tower.",
    "vision_model.",
    "vision_embed_tokens.",
    "vision_encoder.",
    "vision_projection.",
    "visual.",
    "visual_embeddings_table.",
    "embed_vision.",
    "image_tower.",
    "video_tower.",
    "connector.",
    "aligner.",
    "multi_modal_projector.",
    "mm_projector.",
    "image_newline",
    "audio_tower.",
    "audio_model.",
    "embed_audio.",
)
# recomputed or never read: rotary frequencies, masks
_NEVER_READ = (".rotary_emb.inv_freq", ".masked_bias", ".attn.bias", ".attention.bias")
_OTHER = re.compile(r"(?:model\.)?(" + "|".join(map(re.escape, _OTHER_PARTS)) + ")")


def is_never_read(name: str) -> bool:
    """Whether no model reads a tensor of that name, of whatever dtype."""
    return name.endswith(_NEVER_READ)


def other_part(name: str) -> str | None:
    """The prefix that marks a tensor of a vision or audio part, or None."""
    match = _OTHER.match(name)
    return match[1] if match else None


def text_name(name: str) -> str:
    """The name without its multimodal wrapping.

    transformers 4 writes ``language_model.model.layers…``, 5 ``model.language_model.layers…``,
    both ``model.text_model.layers…`` for SmolVLM.
    """
    for wrapping in ("model.language_model.", "model.text_model."):
        if name.startswith(wrapping):
            return "model." + name.removeprefix(wrapping)
    return name.removeprefix("language_model.")
