"""Names inside multimodal checkpoints: the language model's, and what a text decoder leaves out."""

import re

_OTHER_PARTS = (
    "vision_tower.",
    "vision_model.",
    "vision_embed_tokens.",
    "visual.",
    "embed_vision.",
    "multi_modal_projector.",
    "mm_projector.",
    "image_newline",
    "audio_tower.",
    "audio_model.",
    "embed_audio.",
)
_OTHER = re.compile(r"(?:model\.)?(" + "|".join(map(re.escape, _OTHER_PARTS)) + ")")


def other_part(name: str) -> str | None:
    """The prefix that marks a tensor of a vision or audio part, or None."""
    match = _OTHER.match(name)
    return match[1] if match else None


def text_name(name: str) -> str:
    """The name without its multimodal wrapping.

    transformers 4 writes ``language_model.model.layers…``, 5 ``model.language_model.layers…``.
    """
    if name.startswith("model.language_model."):
        return "model." + name.removeprefix("model.language_model.")
    return name.removeprefix("language_model.")
