"""Rotary frequencies against those of transformers, and cosines against float64."""

import json
from pathlib import Path

import numpy as np
import pytest

from rillm.checkpoint.config import config_from_json
from rillm.engine._engine import rotation
from rillm.families.rope import frequencies
from weights import FIXTURES

CASES = json.loads((FIXTURES / "rope.json").read_text())
CASES = CASES["cases"] if "cases" in CASES else CASES
