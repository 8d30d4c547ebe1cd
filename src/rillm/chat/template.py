"""Messages to one prompt, as the model's own chat template writes them.

The environment is that of transformers (utils/chat_template_utils.py): trim_blocks, lstrip_blocks,
loop controls, raise_exception, strftime_now and a tojson that leaves HTML alone.
"""

import json
from collections.abc import Mapping
from datetime import datetime
from functools import cache, lru_cache
from typing import Any

from rillm.errors import TemplateError

_MAX_TEMPLATE_CHARS = 1 << 16  # compiling takes time by length; long ones in use have 20,000
_MAX_MESSAGE_CHARS = 2000  # of an error


def render(
    template: str,
    messages: list[dict[str, Any]],
    *,
    bos_token: str | None = None,
    eos_token: str | None = None,
    add_generation_prompt: bool = True,
    tools: list[dict[str, Any]] | None = None,
    **extra: Any,
) -> str:
    """The prompt for a conversation.

    Encode it with ``add_special_tokens=False``: a template writes the BOS itself where one belongs.

    Parameters
    ----------
    template
        Jinja text; it comes with the model and is not trusted: it runs sandboxed, on a budget of
        time and text.
    messages
        Plain JSON values, ``{"role": …, "content": …}``. Keys whose value is None are left out, as
        transformers does.
    add_generation_prompt
        End with the header of the assistant's turn.
    extra
        Further variables of the template, such as ``enable_thinking=False``.

    Raises
    ------
    TemplateError
        With the template's own words where it refuses the messages; also for a template that is
        wrong, breaks out, or goes over its budget.
    TypeError
        The template is no str, or the messages are no list of dicts.
    """
    if not isinstance(template, str):
        raise TypeError(f"the chat template is {template!r:.60}, expected a str")
    if not isinstance(messages, list | tuple) or not all(isinstance(m, Mapping) for m in messages):
        raise TypeError(
            f"messages are {messages!r:.60}, expected a list of dicts such as "
            '{"role": "user", "content": "Hello"}'
        )
    import jinja2

    from rillm.chat.sandbox import Budget, budget

    messages = [{k: v for k, v in message.items() if v is not None} for message in messages]
    tokens = {"bos_token": bos_token, "eos_token": eos_token}
    variables = {
        "messages": messages,
        "tools": tools,
        "documents": None,
        "add_generation_prompt": add_generation_prompt,
        **{name: token for name, token in tokens.items() if token is not None},
        **extra,
    }
    if len(template) > _MAX_TEMPLATE_CHARS:
        raise TemplateError(
            f"chat template: {len(template)} characters, expected at most {_MAX_TEMPLATE_CHARS}"
        )
    running = budget.set(Budget())  # constant expressions are computed while compiling
    try:
        compiled = _compiled(template)
        budget.set(Budget(variables))
        return compiled.render(variables)
    except jinja2.TemplateSyntaxError as error:
        raise TemplateError(f"chat template, line {error.lineno}: {error.message}") from error
    except jinja2.TemplateError as error:
        words = (error.message or type(error).__name__)[:_MAX_MESSAGE_CHARS]
        raise TemplateError(f"chat template: {words}") from error
    except Exception as error:  # whatever its expressions raise
        words = f"{type(error).__name__}: {error}"[:_MAX_MESSAGE_CHARS]
        raise TemplateError(f"chat template: {words}") from error
    finally:
        budget.reset(running)


@lru_cache(maxsize=16)
def _compiled(template: str) -> Any:
    return _environment().from_string(template)


@cache
def _environment() -> Any:
    from jinja2.ext import loopcontrols

    from rillm.chat.sandbox import BudgetedEnvironment, GenerationTag

    environment = BudgetedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, loopcontrols]
    )
    environment.set_filter("tojson", _tojson)
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda format: datetime.now().strftime(format)
    return environment


def _raise_exception(message: str) -> None:
    import jinja2

    raise jinja2.TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
