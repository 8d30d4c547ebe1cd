import json
import sys
from functools import partial
from time import perf_counter

from click.testing import CliRunner

from rillm.cli import main
from rillm.suite import decode, roof


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


def test_a_bench_tells_what_each_stage_takes_and_reads(tiny_folder, monkeypatch):
    monkeypatch.setattr(decode, "Roof", partial(roof.Roof, n_bytes=1 << 20))
    arguments = ["bench", str(tiny_folder("base")), "--tokens=4", "--depth=8", "--rounds=1"]
    result = json.loads(CliRunner().invoke(main, [*arguments, "--json"]).output)
    read, whole = result["stage_bytes"], result["bytes_per_token"]
    assert sum(read.values()) == whole and read["attend"] == 2 * 2 * 2 * 2 * 16 * (8 + 2)
    assert {*read} | {"embed"} == {*result["stage_microseconds"]}
    lines = CliRunner().invoke(main, [*arguments, "--stages"]).output.splitlines()
    for name, n_bytes in read.items():
        (line,) = (line for line in lines if line.startswith(name))
        _, microseconds, *_, rate, unit = line.split()
        most, least = (n_bytes / max(float(microseconds) + by, 1e-9) / 1e3 for by in (-0.05, 0.05))
        assert unit == "GB/s" and least - 0.05 <= float(rate) <= most + 0.05
