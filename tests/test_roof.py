import sys
from time import perf_counter

from rillm.suite import roof


def test_a_pass_lasts_as_long_as_its_readers_say(monkeypatch):
    """Even where whoever waits for them gets no time: these readers keep the interpreter's lock."""
    seconds, n_bytes = 0.05, 1 << 20

    def read(isa, floats):
        end = perf_counter() + seconds
        while perf_counter() < end:
            pass

    monkeypatch.setattr(roof, "read_sum", read)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1.0)
    try:
        rate = roof.Roof(2, n_bytes).measure(passes=2)
    finally:
        sys.setswitchinterval(before)
    assert 0 < rate <= n_bytes / seconds
