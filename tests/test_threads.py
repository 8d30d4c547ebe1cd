"""Threads, forks, turns and memory: what a host program may do to us."""

import gc
import os
import signal
import threading
import time

import numpy as np
import pytest

import rillm
from rillm import cpu
from rillm.engine import _engine
from rillm.engine._engine import available_isas
from weights import load_case

TOKENS = load_case("base")["tokens"]


def run(model, tokens=TOKENS):
    with model.session() as session:
        return session.prefill(tokens, chunk=8)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_huggingface_tokenizers_187_generate_in_a_forked_child(tiny_folder):
    with rillm.Model.from_pretrained(tiny_folder("base"), threads=3) as model:
        expected = run(model)
        for _ in range(5):
            reader, writer = os.pipe()
            child = os.fork()
            if child == 0:
                os.write(writer, run(model).tobytes())
                os._exit(0)
            os.close(writer)
            deadline = time.monotonic() + 10
            while os.waitpid(child, os.WNOHANG) == (0, 0):
                if time.monotonic() > deadline:
                    os.kill(child, signal.SIGKILL)
                    pytest.fail("the child hangs")
                time.sleep(0.01)
            with os.fdopen(reader, "rb") as pipe:
                assert pipe.read() == expected.tobytes()
        assert np.array_equal(run(model), expected)  # the parent's pool is as it was


def test_abetlen_llama_cpp_python_471_many_sessions_take_turns(tiny_folder):
    with rillm.Model.from_pretrained(tiny_folder("base"), threads=2) as model:
        expected = [run(model, TOKENS[i:]) for i in range(8)]
        wrong = []

        def work(i):
            for _ in range(50):
                if not np.array_equal(run(model, TOKENS[i:]), expected[i]):
                    wrong.append(i)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong


def test_more_threads_than_cores(tiny_folder):
    with rillm.Model.from_pretrained(tiny_folder("base"), threads=1) as model:
        expected = run(model)
    with rillm.Model.from_pretrained(tiny_folder("base"), threads=13) as model:
        assert np.array_equal(run(model), expected)


def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_ggml_org_llama_cpp_25953_memory_does_not_grow(tiny_folder):
    def load_and_run():
        with rillm.Model.from_pretrained(tiny_folder("base"), threads=2) as model:
            run(model)

    for _ in range(10):
        load_and_run()
    gc.collect()
    before = resident_bytes()
    for _ in range(100):
        load_and_run()
    gc.collect()
    assert resident_bytes() - before <= 4 << 20

    with rillm.Model.from_pretrained(tiny_folder("base")) as model, model.session(4096) as session:
        session.prefill((TOKENS * 60)[:4000])
        for round in range(12):
            session.rewind(1)
            for token in TOKENS:
                session.step(token)
            before = resident_bytes() if round == 1 else before
        assert resident_bytes() - before <= 64 << 10


def test_dougeeai_wheels_4_a_lower_isa_can_be_forced(monkeypatch, tiny_folder):
    for isa in available_isas():
        monkeypatch.setenv("RILLM_ISA", isa)
        with rillm.Model.from_pretrained(tiny_folder("base")) as model:
            assert model.info()["isa"] == isa


@pytest.mark.parametrize("wish", ["sse9", "AVX2 "])
def test_an_unknown_isa_is_refused_in_words(monkeypatch, tiny_folder, wish):
    monkeypatch.setenv("RILLM_ISA", wish + "x")
    with pytest.raises(rillm.errors.UnsupportedISA, match="available are portable"):
        rillm.Model.from_pretrained(tiny_folder("base"))


def test_huge_pages_can_be_declined(monkeypatch, tiny_folder):
    monkeypatch.setenv("RILLM_HUGE_PAGES", "0")
    with rillm.Model.from_pretrained(tiny_folder("base")) as declined:
        assert declined.info()["huge_pages"] == "no"
        expected = run(declined)
    monkeypatch.delenv("RILLM_HUGE_PAGES")
    with rillm.Model.from_pretrained(tiny_folder("base")) as model:
        assert np.array_equal(run(model), expected)


def test_rillm_threads_is_honoured(monkeypatch, tiny_folder):
    monkeypatch.setenv("RILLM_THREADS", "3")
    with rillm.Model.from_pretrained(tiny_folder("base")) as model:
        assert model.info()["threads"] == 3 and "RILLM_THREADS" in model.info()["threads_why"]


def test_the_door_and_the_pool_agree_on_the_most_threads():
    assert cpu.MAX_THREADS == _engine.THREADS_AT_MOST


def test_import_loads_numpy_and_our_extension_only():
    import subprocess
    import sys

    code = (
        "import sys, rillm; "
        "heavy = {'tokenizers', 'jinja2', 'huggingface_hub', 'safetensors', 'click', 'rich', "
        "'torch', 'transformers'} & set(sys.modules); assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
