"""Packed copies: the bytes of packing anew, or not used; and never more room than allowed."""

import hashlib
import json
import logging
import os
import resource
import struct
import zlib

import numpy as np
import pytest
from click.testing import CliRunner

from rillm import Model
from rillm.checkpoint import hub, open_checkpoint
from rillm.cli import main
from rillm.engine._engine import SOURCE_KINDS, Weights, panel_bytes, row_bytes
from rillm.weights import copies, packed
from rillm.weights.formats import NATIVE
from rillm.weights.packing import Layout, whole_rows
from weights import load_case, random_integers, write_model

TOKENS = load_case("base")["tokens"]


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("RILLM_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "model").mkdir()
    write_model(tmp_path / "model", "base", "F32", 1)
    return tmp_path / "model"


def load(folder, weights="auto"):
    """Logits, and whether a packed copy was read."""
    with Model.from_pretrained(folder, weights=weights) as model, model.session() as session:
        return session.prefill(TOKENS).tobytes(), model.info()["packed_copy"]


def add(folder, weights="auto", max_bytes=10**9):
    return copies.add(folder, weights, max_bytes)[0].path


def change_byte(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(data)


@pytest.mark.parametrize("weights", ["auto", "f32", "bf16", "q4"])
@pytest.mark.parametrize("case", ["base", "gpt2", "cohere", "gemma3_text", "apertus"])
def test_a_copy_gives_the_same_logits(case, weights, tiny_folder):
    folder = tiny_folder(case)
    expected, was_copy = load(folder, weights)
    assert not was_copy
    add(folder, weights)
    assert load(folder, weights) == (expected, True)


def test_loading_never_writes_a_copy(folder, home):
    load(folder)
    assert not (home / "packed").exists()


def test_a_copy_is_for_one_choice_of_weights(folder):
    add(folder, "q4")
    assert not load(folder, "q8")[1]
    assert load(folder, "q4")[1]


def test_int4_and_q4_share_a_copy(folder):
    add(folder, "int4")
    assert load(folder, "q4")[1]


def touch(folder):
    os.utime(folder / "model.safetensors", ns=(1, 1))


def other_weights(folder):
    """Of the same size and time, as when a file is replaced by a tool that keeps times."""
    file = folder / "model.safetensors"
    times = file.stat()
    change_byte(file, -3)
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))


@pytest.mark.parametrize("change", [touch, other_weights])
def test_a_changed_source_is_packed_anew(change, folder, caplog):
    add(folder)
    change(folder)
    changed, was_copy = load(folder)
    assert not was_copy
    assert "packed copy not used" in caplog.text
    add(folder)  # in place of the old one
    assert load(folder) == (changed, True)
    assert len(copies.copies()) == 1


def test_a_changed_plan_is_packed_anew(folder, caplog):
    path = add(folder)
    with open_checkpoint(folder) as checkpoint:
        layout = Layout()
        layout.vector(np.ones(3, np.float32))
        assert packed.load(checkpoint, "auto", layout, 1) is None
    assert f"{path}: packed copy not used: its layout" in caplog.text


def test_damage_anywhere_is_found(folder, caplog):
    expected, _ = load(folder)
    path = add(folder)
    whole, data_start = path.read_bytes(), path.stat().st_size - path_arena_bytes(folder)
    header_end = whole.rindex(b"}", 0, data_start) + 1
    places = [0, 9, 13, 20, header_end - 3, data_start, data_start + 12345, len(whole) - 1]
    for at in places:
        caplog.clear()
        change_byte(path, at)
        assert load(folder) == (expected, False), at
        assert [record.levelno for record in caplog.records] == [logging.WARNING], at
        path.write_bytes(whole)
    for length in (0, 5, 16, header_end - 1, data_start, len(whole) - 64, len(whole) - 1):
        path.write_bytes(whole[:length])
        assert load(folder) == (expected, False), length
    path.write_bytes(whole + b"more")
    assert load(folder) == (expected, False)
    path.write_bytes(whole)
    assert load(folder) == (expected, True)


def path_arena_bytes(folder):
    with Model.from_pretrained(folder) as model:
        return model._weights.n_bytes


def test_a_header_of_other_types_is_not_used(folder):
    expected, _ = load(folder)
    path = add(folder)
    file = os.open(path, os.O_RDONLY)
    header, _ = packed.read_header(file)
    os.close(file)
    arena = path.read_bytes()[-path_arena_bytes(folder) :]
    for key, value in (("checksums", None), ("checksums", {}), ("checksums", ["x"]), ("files", 3)):
        text = json.dumps(header | {key: value}).encode()
        prefix = struct.pack("<8sII", b"rillmpak", len(text), zlib.crc32(text))
        path.write_bytes((prefix + text).ljust(4096, b"\0") + arena)
        assert load(folder) == (expected, False), (key, value)


def test_a_full_disk_leaves_nothing(folder, home):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        with pytest.raises(OSError, match="large"):
            add(folder)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list((home / "packed").iterdir()) == []


def test_the_copy_not_used_for_longest_makes_room(folder):
    sizes = {}
    for age, weights in enumerate(("q8", "f16", "bf16")):
        path = add(folder, weights)
        sizes[weights] = path.stat().st_size
        os.utime(path, (1000 + age, 1000 + age))
    load(folder, "q8")  # used now
    _, removed = copies.add(folder, "q4", sum(sizes.values()))
    assert [copy.weights for copy in removed] == ["f16"]
    assert {copy.weights for copy in copies.copies()} == {"q8", "bf16", "q4"}


def test_a_copy_that_is_larger_than_allowed(folder):
    path = add(folder)
    with pytest.raises(ValueError, match="--max-bytes allows 1,000"):
        add(folder, "f32", max_bytes=1000)
    assert [copy.path for copy in copies.copies()] == [path]


def run(*arguments):
    return CliRunner().invoke(main, ["cache", *map(str, arguments)], catch_exceptions=False)


def test_the_commands(folder, home):
    ran = run("add", folder, "--weights", "q4")
    path = copies.copies()[0].path
    assert (ran.exit_code, ran.stdout) == (0, f"{path}\n")
    (home / "packed" / "broken.packed").write_bytes(b"no copy")
    assert f"q4 of {folder}" in run("list").stdout
    listed = json.loads(run("list", "--json").stdout)
    assert {entry["model"] for entry in listed} == {str(folder), None}
    (home / "packed" / ".partial-1-of-a-killed-process").write_bytes(b"")
    ran = run("clear", folder)
    assert (ran.exit_code, ran.stdout) == (0, "")
    assert f"q4 of {folder}" in ran.stderr
    assert [copy.model for copy in copies.copies()] == [None]
    run("clear")
    assert list((home / "packed").iterdir()) == []


def test_clearing_fetches_nothing_and_finds_what_is_gone(folder, home, monkeypatch):
    add(folder)
    folder.rename(folder.with_name("elsewhere"))
    assert f"auto of {folder} (gone)" in run("list").stdout
    monkeypatch.setattr(hub, "_fetch", None)  # would raise TypeError
    assert run("clear", "smollm2-135m").stderr == ""
    assert len(copies.copies()) == 1
    run("clear", folder)
    assert copies.copies() == []


def checksum(data):
    """As ext/runtime/arena.c states it, in Python's integers."""
    lines = data.view(np.uint32).reshape(-1, 16).tolist()
    sums, sums_of_sums, result = [0] * 16, [0] * 16, len(lines)
    for line in lines:
        sums = [a + b for a, b in zip(sums, line, strict=True)]
        sums_of_sums = [a + b for a, b in zip(sums_of_sums, sums, strict=True)]
    for pair in zip(sums, sums_of_sums, strict=True):
        for value in pair:
            result = (result * 0x9E3779B97F4A7C15 + value) % 2**64
    return result


def test_checksum_depends_on_every_bit_and_on_order():
    weights = Weights(4096)
    data = weights.view().view(np.uint8)
    data[:] = random_integers("checksum", 512).view(np.uint8)
    whole = weights.checksum(0, 4096)
    assert whole == checksum(data)
    assert weights.checksum(64, 1024) == checksum(data[64:1088])
    for at in range(4096):
        data[at] ^= 1 << at % 8
        assert weights.checksum(0, 4096) != whole, at
        data[(at + 128) % 4096] ^= 1 << at % 8  # the same bit two lines on
        assert weights.checksum(0, 4096) != whole, at
        data[[at, (at + 128) % 4096]] ^= 1 << at % 8
    data[:128] = np.roll(data[:128], 64)
    assert weights.checksum(0, 4096) != whole
    data[:] = 0
    assert weights.checksum(0, 4096) != weights.checksum(0, 4032)


def test_packing_is_what_its_number_stands_for():
    """Where packing gives other bytes on purpose, raise packed.PACKING with this checksum."""
    digest, rows = hashlib.sha256(), whole_rows(21)
    for kind in SOURCE_KINDS:
        bits = random_integers(kind, 21 * 512).view(np.uint8) & 0x3B
        for format in dict.fromkeys((NATIVE[kind], "f32", "bf16", "q8", "q4", "q4m", "q4_64")):
            for n in (512, 96, 33):  # whole stretches, half of one, and half a line
                if not (n_bytes := row_bytes(kind, n)):
                    continue
                stride = panel_bytes(format, n)
                weights, source = Weights(2 * stride), bits[: 21 * n_bytes]
                assert weights.pack(format, kind, source, rows, n, 0, stride), (kind, format)
                digest.update(weights.bytes(0, 2 * stride).tobytes())
    assert (packed.PACKING, digest.hexdigest()[:16]) == (3, "7aefcc84a7fd1084")
