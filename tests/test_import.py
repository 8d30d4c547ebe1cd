"""What importing costs, counted in modules: what is slow and seldom wanted comes later."""

import subprocess
import sys

import pytest

import rillm

SLOW = {"tokenizers", "jinja2", "huggingface_hub", "tqdm", "rich", "click", "asyncio", "email"} | {
    "http", "ssl", "zipfile", "tempfile", "importlib.metadata", "concurrent.futures", "hashlib"
}  # fmt: skip


def modules_after(code: str) -> set[str]:
    before = "import sys, numpy; before = set(sys.modules)"
    code = f"{before}; {code}; print(*set(sys.modules) - before)"
    ran = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return set(ran.stdout.split())


def test_importing_rillm_imports_nothing_else():
    assert modules_after("import rillm") == {"rillm", "rillm.errors"}


@pytest.mark.parametrize("name", ["Model", "Session"])
def test_what_is_asked_for_is_imported_without_what_is_slow(name):
    found = modules_after(f"from rillm import {name}")
    assert "rillm.session" in found
    assert found & SLOW == set()
    assert len(found) < 100


def test_the_names_of_the_package():
    assert set(rillm.__all__) <= set(dir(rillm))
    assert rillm.Model is rillm.model.Model and rillm.Session is rillm.session.Session
    assert rillm.__version__.count(".") == 2
    with pytest.raises(AttributeError, match="'rillm' has no attribute 'Modle'"):
        _ = rillm.Modle
