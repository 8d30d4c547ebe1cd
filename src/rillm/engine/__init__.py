"""The C engine behind Python: `choose_isa` says which instruction set it runs on."""

import os

from rillm.engine._engine import ISA_NAMES, available_isas
from rillm.errors import UnsupportedISA


def choose_isa() -> str:
    """The best instruction set of this machine, or the one RILLM_ISA names.

    Raises
    ------
    UnsupportedISA
        RILLM_ISA is unknown, or this CPU or system lacks it.
    """
    available = available_isas()
    wish = os.environ.get("RILLM_ISA", "").strip()
    if not wish:
        return available[-1]
    if wish not in available:
        why = "this machine lacks it" if wish in ISA_NAMES else "it is unknown"
        raise UnsupportedISA(
            f"RILLM_ISA is {wish!r}, but {why}; available are {', '.join(available)}"
        )
    return wish
