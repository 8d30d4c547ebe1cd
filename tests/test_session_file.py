"""A session in a file: it goes on with the same bits, and no damage passes for one."""

import json
import os
import random
import threading
import zlib
from time import monotonic

import numpy as np
import pytest
import safetensors.numpy

import rillm
from rillm import errors

TYPED = (errors.SessionFileError, errors.TruncatedFile, errors.MalformedFile)


def text(n, seed=0):
    return np.random.default_rng(seed).integers(3, 97, n).tolist()


@pytest.fixture(scope="module")
def model(tiny_folder):
    with rillm.Model.from_pretrained(tiny_folder("gemma3_text"), context=4096) as model:
        yield model


@pytest.fixture
def saved(model, tmp_path):
    """A file of 300 tokens."""
    with model.session() as session:
        session.prefill(text(300))
        session.save(tmp_path / "saved")
    return tmp_path / "saved"


@pytest.mark.parametrize("n", [0, 1, 255, 256, 257, 3000])
@pytest.mark.parametrize("kv", ["f32", "f16", "q8"])
def test_it_goes_on_with_the_same_bits(tiny_folder, tmp_path, n, kv):
    path, ids = tmp_path / "saved", text(n)
    options = {"context": 4096, "kv": kv, "threads": 1}
    with rillm.Model.from_pretrained(tiny_folder("gemma3_text"), **options) as model:
        with model.session() as session:
            if n:
                session.prefill(ids)
            session.surprise_limits = {n + 1: (5, 7.25)} if n else {}
            session.save(path)
            limits = session.surprise_limits
            expected = [session.step(token) for token in (5, 6)]
    with rillm.Model.from_pretrained(tiny_folder("gemma3_text"), **options) as model:  # another day
        with model.session() as session:
            session.prefill(text(40, 1))
            session.load(path)
            assert session.tokens == ids and session.surprise_limits == limits
            if n > 1:
                assert not np.isnan(session.score([5]))[0]  # the logits before it are found again
                session.rewind(n)
            assert all(
                np.array_equal(session.step(t), e) for t, e in zip((5, 6), expected, strict=True)
            )
    assert os.listdir(tmp_path) == ["saved"]


def test_other_software_can_read_it(model, saved):
    tensors = safetensors.numpy.load_file(saved)
    assert tensors["tokens"].tolist() == text(300)
    n_bytes = sum(t.nbytes for name, t in tensors.items() if name.startswith("ring."))
    layer_page = 256 * model.info()["kv_bytes_per_position"] // 4
    assert n_bytes == 5 * layer_page  # two of the full layer, the last of three that slide


def test_what_was_taken_back_is_not_written(model, tmp_path):
    files = []
    for astray in (False, True):
        with model.session() as session:
            session.prefill(text(300))
            if astray:
                session.prefill(text(150, 1))
                session.rewind(300)
            session.save(tmp_path / "saved")
        files.append((tmp_path / "saved").read_bytes())
    assert files[0] == files[1]


def test_mismatches_are_refused_in_words(model, tiny_folder, saved):
    def refused(session, match):
        session.prefill([9, 8, 7])
        with pytest.raises(errors.SessionFileError, match=match):
            session.load(saved)
        assert session.tokens == [9, 8, 7]  # nothing has changed
        session.step(1)

    folder = tiny_folder("gemma3_text")
    with rillm.Model.from_pretrained(folder, context=4096, weights="f32", kv="f16") as other:
        refused(other.session(), "saved with model '[0-9a-f]{64}', but here it is")
    with rillm.Model.from_pretrained(folder, context=4096, activations="int16", kv="f16") as other:
        refused(other.session(), "saved with activations 'int8', but here it is 'int16'")
    with rillm.Model.from_pretrained(folder, context=4096, kv="q8") as other:
        refused(other.session(), "saved with kv 'f16', but here it is 'q8'")
    with rillm.Model.from_pretrained(tiny_folder("gemma3_text_linear"), kv="f16") as other:
        refused(other.session(), "saved with model")
    refused(model.session(context=200), "300 tokens, but this session holds at most 200")
    refused(model.session(context=200, context_policy="slide"), "were seen with policy stop")
    with model.session(context=300, context_policy="sink") as session:
        session.load(saved)  # nothing had slid: the same bits under any policy


def test_of_a_session_that_slid(model, tmp_path):
    path, ids = tmp_path / "saved", text(900)
    with model.session(context=200, context_policy="sink") as session:
        session.prefill(ids)
        session.save(path)
        expected = session.step(3)
    with model.session(context=200, context_policy="sink") as session:
        session.load(path)
        assert np.array_equal(session.step(3), expected)
    for options in ({"n_keep": 5}, {"context": 201}, {"context_policy": "slide"}):
        options = {"context": 200, "context_policy": "sink"} | options
        with model.session(**options) as session:
            with pytest.raises(errors.SessionFileError, match="make one like it"):
                session.load(path)


def test_of_a_session_rewound_to_its_earliest(model, tmp_path):
    """What was before it has left, so its last logits are found again from the start."""
    ids = text(1500)
    with model.session(40, context_policy="sink") as session, model.session(40) as other:
        session.prefill(ids)
        session.rewind(n := session.earliest)
        assert n > 0
        session.save(tmp_path / "saved")
        with pytest.raises(errors.SessionFileError):
            other.load(tmp_path / "saved")
    likes = [model.session(40, context_policy="sink") for _ in range(2)]
    likes[0].load(tmp_path / "saved")
    likes[1].prefill(ids[: n - 1])
    assert likes[0].score([5])[0] == likes[1].score([ids[n - 1], 5])[1]
    assert likes[0].tokens == likes[1].tokens


@pytest.mark.parametrize("case", ["phi3_longrope", "llama_longrope", "llama_dynamic"])
def test_of_a_session_that_shrank_below_a_border_of_its_turns(tiny_folder, tmp_path, case):
    with rillm.Model.from_pretrained(tiny_folder(case)) as model:
        n = model._config.ropes[0].original_context
        ids = text(n + 40)
        with model.session() as session, model.session() as other, model.session() as cold:
            session.prefill(ids)
            session.rewind(n - 20)
            session.save(tmp_path / "saved")
            other.load(tmp_path / "saved")
            expected = cold.prefill([*ids[: n - 20], 5])
            assert np.array_equal(other.step(5), expected)
            assert np.array_equal(session.step(5), expected)


def test_two_threads_may_write_one_file(model, tmp_path):
    path, wrong = tmp_path / "saved", []
    sessions = [model.session() for _ in range(3)]
    for i, session in enumerate(sessions):
        session.prefill(text(100 + i))
    sessions[0].save(path)

    def save(session):
        for _ in range(30):
            session.save(path)

    def load():
        with model.session() as session:
            for _ in range(60):
                session.load(path)
                if session.tokens != text(session.position):
                    wrong.append(session.position)

    threads = [threading.Thread(target=save, args=(s,)) for s in sessions]
    threads.append(threading.Thread(target=load))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and os.listdir(tmp_path) == ["saved"]


def test_a_full_disk_leaves_the_old_file(model, saved, monkeypatch):
    before = saved.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    with model.session() as session:
        session.prefill(text(50))
        monkeypatch.setattr("rillm.session_file.zlib.crc32", full)
        with pytest.raises(OSError, match="No space left"):
            session.save(saved)
    assert saved.read_bytes() == before
    assert os.listdir(saved.parent) == ["saved"]


def test_a_link_leads_to_the_file_and_stays(model, saved):
    (link := saved.with_name("link")).symlink_to(saved)
    (dangling := saved.with_name("dangling")).symlink_to(new := saved.with_name("new"))
    with model.session() as session:
        session.prefill(text(7))
        session.save(link)
        session.save(dangling)
        assert link.is_symlink() and dangling.is_symlink()
        assert saved.read_bytes() == new.read_bytes()
        session.load(link)
    assert sorted(os.listdir(saved.parent)) == ["dangling", "link", "new", "saved"]


def test_only_a_file_is_replaced(model, tmp_path, monkeypatch):
    """And what is none is refused before anything is written."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    monkeypatch.setattr("rillm.whole_file.os.replace", lambda *_: pytest.fail("written"))
    with model.session() as session:
        for path in (tmp_path, tmp_path / "pipe", tmp_path / "link"):
            with pytest.raises(OSError, match="no regular file"):
                session.save(path)
    assert sorted(os.listdir(tmp_path)) == ["link", "pipe"] and (tmp_path / "pipe").is_fifo()


def test_a_name_as_long_as_the_system_allows(model, tmp_path):
    with model.session() as session:
        session.save(tmp_path / ("x" * 255))
        session.load(tmp_path / ("x" * 255))


def test_files_that_are_none(model, tmp_path, saved):
    session = model.session()
    with pytest.raises(FileNotFoundError):
        session.load(tmp_path / "nowhere")
    safetensors.numpy.save_file({"tokens": np.zeros(3, np.int32)}, tmp_path / "other")
    with pytest.raises(errors.SessionFileError, match="no saved session"):
        session.load(tmp_path / "other")
    (tmp_path / "empty").touch()
    with pytest.raises(errors.SessionFileError, match="is empty, expected a saved session$"):
        session.load(tmp_path / "empty")
    for data in (b"", b"{}", b"GGUF" + bytes(100), os.urandom(1000)):
        (tmp_path / "bad").write_bytes(data)
        with pytest.raises(TYPED):
            session.load(tmp_path / "bad")


def damaged(data, rng):
    """Another file of about the same bytes, or with a header that tells another tale."""
    kind = rng.randrange(5)
    at = rng.randrange(len(data))
    if kind == 0:
        return data[:at]
    if kind == 1:
        return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]
    if kind == 2:
        return data[:at] + rng.randbytes(rng.randrange(1, 20)) + data[at:]
    n = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + n])
    if kind == 3:
        name = rng.choice(sorted(header))
        entry = header[name]
        key = rng.choice(sorted(entry))
        entry[key] = rng.choice([None, -1, 2**63, "x", [], [0, 2**62], {}, "NaN", entry[key]])
        if rng.random() < 0.3:
            del header[name]
    else:
        header["__metadata__"]["surprise_limits"] = rng.choice(
            ["[]", "{}", "{", '{"a":1}', "[" * 9999]
        )
    text = json.dumps(header).encode()
    whole = len(text).to_bytes(8, "little") + text + data[8 + n :]
    return whole[:-4] + zlib.crc32(whole[8:-4]).to_bytes(4, "little")  # its sum is right


def test_damage_gives_typed_errors(model, saved):
    """RILLM_TEST_SECONDS=600 goes on for as long."""
    rng, data, n_loaded = random.Random(1), saved.read_bytes(), 0
    end, session = monotonic() + float(os.environ.get("RILLM_TEST_SECONDS", "3")), model.session()
    while monotonic() < end:
        saved.write_bytes(damaged(data, rng))
        before = session.tokens
        try:
            session.load(saved)
            n_loaded += 1
            assert session.tokens == text(300)
            session.step(1)
            session.rewind(300)
        except TYPED:
            assert session.tokens == before
    assert n_loaded  # changes that say the same
