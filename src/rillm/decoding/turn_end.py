"""The token that a chat template ends an answer with, where the model's files do not name it."""

from __future__ import annotations

from rillm.errors import TemplateError, UnsupportedTokenizer

_ANSWER = "Yes"


def turn_end(template: str | None, tokenizer) -> tuple[int, ...]:
    """The special token right behind an answer in a rendered conversation, if there is one."""
    if template is None:
        return ()
    from rillm.chat.template import render

    messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _ANSWER}]
    try:
        text = render(
            template,
            messages,
            bos_token=tokenizer.bos_token,
            eos_token=tokenizer.eos_token,
            add_generation_prompt=False,
        )
        following = text.rpartition(_ANSWER)[2].lstrip()
        ids = tokenizer.encode(following, add_special_tokens=False)[:1] if following else []
    except (TemplateError, UnsupportedTokenizer):  # it takes other messages, or knows no text
        return ()
    return tuple(id for id in ids if id in tokenizer.special_ids)
