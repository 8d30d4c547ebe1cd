"""A step of the loop as a block to read, or as a line of JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rillm.decoding.trace import Candidate, Step


def block(step: Step) -> str:
    """What could have come, what was kept, what came and why, what it added, what was checked."""
    checks = (f"{name} {'yes' if ended else 'no'}" for name, ended in step.checks)
    lines = (
        (f"step {step.index}", f"position {step.position}"),
        ("model", _listed(step.before)),
        (f"kept {step.n_kept}", _listed(step.after)),
        ("chosen", f"{_quoted(step.text)} {step.probability:.3f}, {step.token}: {step.why}"),
        ("appended", _quoted(step.appended) if step.appended else "nothing yet"),
        ("checks", ", ".join(checks)),
    )
    return "\n".join(f"{name:11}{text}" for name, text in lines) + "\n"


def json_line(step: Step) -> str:
    return json.dumps(step.as_dict())


def _listed(candidates: tuple[Candidate, ...]) -> str:
    return "  ".join(f"{_quoted(each.text)} {each.probability:.3f}" for each in candidates)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
