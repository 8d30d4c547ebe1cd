"""The commands with a scripted model: what they print where, and how they end."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from tokenizers.processors import TemplateProcessing

import rillm
import small_tokenizers as small
from rillm.checkpoint import hub
from rillm.cli import loading, main
from rillm.decoding.loop import stream
from rillm.decoding.sampling import Sampling
from rillm.errors import DownloadError, ModelNotFound

INFO = {
    "model": "scripted",
    "family": "llama",
    "n_parameters": 134_500_000,
    "shapes": {"dim": 576, "n_layers": 30},
    "weights": {"q8": 30_000_000, "q4_1": 81_000_000},
    "kv": "f16",
    "kv_bytes_per_position": 23_040,
    "bytes_per_token": 111_000_000,
    "isa_available": ["portable", "avx2"],
    "isa": "avx2",
    "threads": 2,
    "threads_why": "2 physical performance cores among 4 allowed CPUs",
    "huge_pages": "yes",
    "skipped": {},
    "source": "/models/scripted",
    "packed_copy": False,
    "reencoded": None,
    "widened": None,
}
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]\n\n{% endif %}"
)


class ScriptedModel:
    """What the commands use of rillm.Model."""

    chat_template = None
    before_forward = staticmethod(lambda n_before: None)

    def __init__(self, script):
        self.tokenizer = small.byte_level(["?\n"])
        self.eos_token_ids = (self.tokenizer.id("<eos>"),)
        self.script = [*script, *self.eos_token_ids]
        self.prompt_ids: list[int] = []
        self.closed = False

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.closed = True

    def encode(self, text):
        return self.tokenizer.encode(text)

    def info(self):
        return INFO

    def stream(self, ids, on_step=None, **options):
        self.prompt_ids = ids
        session = small.ScriptedSession(self.script)
        forward = session._forward

        def watched_forward(n_tokens):
            self.before_forward(len(session.calls))
            return forward(n_tokens)

        session._forward = watched_forward
        sampling = Sampling.from_options({}, options)
        return stream(session, self.tokenizer, self.eos_token_ids, ids, sampling, on_step=on_step)


@pytest.fixture
def model(monkeypatch):
    scripted = ScriptedModel(b"Paris.")
    monkeypatch.setattr(loading, "load_model", lambda *args: scripted)
    return scripted


def run(*arguments, **options):
    return CliRunner().invoke(main, [str(argument) for argument in arguments], **options)


def test_generate_streams_text_and_ends_with_one_line_of_figures(model):
    ran = run("generate", "Where?")
    assert ran.exit_code == 0
    assert ran.stdout == "Paris.\n"
    line = ran.stderr.rstrip("\n")
    assert "\n" not in line
    assert line.startswith("7 tokens, ")
    assert line.endswith(" GB/s, weights q4_1+q8, avx2, 2 threads")
    rate, gigabytes = (float(part.split()[0]) for part in line.split(", ")[1:3])
    assert gigabytes == pytest.approx(rate * 0.111, abs=0.1)
    assert model.closed


def test_generate_json_is_one_object(model):
    ran = run("generate", "Where?", "--json", "--seed", 7, "--max-new-tokens", 3)
    record = json.loads(ran.stdout)
    assert record["text"] == "Par"
    assert record["token_ids"] == list(b"Par")
    assert record["finish_reason"] == "length"
    assert record["finish"]["cause"] == "max_new_tokens"
    assert record["seed"] == 7
    assert record["timings"]["n_prompt"] == len(b"Where?")
    assert record["timings"]["n_generated"] == 3
    assert (record["isa"], record["threads"]) == ("avx2", 2)


def test_generate_json_has_the_logprobs_that_were_asked_for(model):
    record = json.loads(run("generate", "Where?", "--json").stdout)
    assert not {"logprobs", "prompt_logprobs"} & set(record)
    ran = run("generate", "Where?", "--json", "-o", "logprobs=2", "-o", "max_tokens=3")
    record = json.loads(ran.stdout)
    assert [each["token"] for each in record["logprobs"]] == record["token_ids"] == list(b"Par")
    assert [len(each["top"]) for each in record["logprobs"]] == [2, 2, 2]


def test_trace_is_a_block_a_step(model):
    ran = run("generate", "Where?", "--trace", "--max-new-tokens", 2, "-o", "stop=ar")
    blocks = ran.stdout.split("\n\n")
    assert blocks[0].splitlines() == [
        "step 0     position 6",
        'model      "P" 0.964  "\\u0000" 0.000  "\\u0001" 0.000  "\\u0002" 0.000  "\\u0003" 0.000  '
        '"\\u0004" 0.000  "\\u0005" 0.000  "\\u0006" 0.000',
        'kept 1     "P" 1.000',
        'chosen     "P" 1.000, 80: temperature 0: the largest logit',
        'appended   "P"',
        "checks     eos no, stop_string no, max_new_tokens no, context no, cancelled no",
    ]
    assert "appended   nothing yet" not in blocks[1]
    assert blocks[1].endswith("checks     eos no, stop_string no, max_new_tokens yes")
    assert ran.stderr.startswith("2 tokens, ")


def test_trace_as_json_is_a_line_a_step_and_the_record(model):
    ran = run("generate", "Where?", "--trace", "--json", "--temperature", 1, "--seed", 3)
    *steps, record = map(json.loads, ran.stdout.splitlines())
    assert [step["token"] for step in steps] == record["token_ids"]
    assert "".join(step["appended"] for step in steps) == record["text"]
    assert steps[-1]["checks"][-1][1] is True
    assert all(step["n_kept"] == 300 for step in steps)


def test_any_option_can_be_given(model):
    ran = run("generate", "x", "--json", "-o", "stop_token_ids=[114]", "-o", "min_new_tokens=4")
    assert json.loads(ran.stdout)["token_ids"][2] != 114
    ran = run("generate", "x", "--json", "-o", "stop_token_ids=[114]")
    assert json.loads(ran.stdout)["finish"] == {
        "reason": "stop",
        "cause": "stop_token",
        "detail": 114,
        "token_index": 2,
        "character_index": 2,
    }


def test_an_option_may_go_by_its_other_name(model):
    """And over the default of a flag; a mapping's keys are strings in JSON."""
    options = ["-o", "max_tokens=5", "-o", f'logit_bias={{"{ord("r")}": -100}}']
    token_ids = json.loads(run("generate", "x", "--json", *options).stdout)["token_ids"]
    assert len(token_ids) == 5 and token_ids[1] == ord("a") and token_ids[2] != ord("r")


def test_ggml_org_llama_cpp_14937(model):
    """T2: the limit within a character gives U+FFFD in valid JSON."""
    model.script = [0xF0]
    ran = run("generate", "x", "--json", "--max-tokens", 1)
    assert json.loads(ran.stdout_bytes.decode("utf-8"))["text"] == "\ufffd"
    assert json.loads(ran.stdout)["finish_reason"] == "length"


def test_abetlen_llama_cpp_python_1501(model):
    """C1: a rendered template has one BOS, its own, also when the tokenizer would add another."""
    bos = model.tokenizer.id("<s>")
    model.tokenizer.backend.post_processor = TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", bos)]
    )
    model.chat_template = TEMPLATE
    assert run("generate", "Where?").exit_code == 0
    assert model.prompt_ids.count(bos) == 1


def test_atomaai_atoma_infer_227(model):
    """C2: the prompt ends with the header of the answer."""
    model.chat_template = TEMPLATE
    run("generate", "Where?")
    text = model.tokenizer.decode(model.prompt_ids, skip_special_tokens=False)
    assert text == "<s>[user]Where?[assistant]\n\n"


def test_raw_leaves_the_template_out(model):
    model.chat_template = TEMPLATE
    run("generate", "Where?", "--raw")
    assert model.prompt_ids == list(b"Where?")


def test_the_prompt_may_come_from_standard_input(model):
    run("generate", input="Wo?\nDa?\n")
    assert model.prompt_ids == list(b"Wo?\nDa?")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["generate", ""], "prompt is empty"),
        (["generate", "x", "--temperature", "-1"], "temperature is -1.0: expected"),
        (["generate", "x", "--temperature", "nan"], "temperature is nan: expected"),
        (["generate", "x", "--top-p", "2"], "top_p is 2.0: expected from 0 to 1"),
        (["generate", "x", "-o", "min_q=1"], "unknown option 'min_q'"),
        (["generate", "x", "-o", "min_p"], "expected NAME=VALUE"),
        (["generate", "x", "-o", "n=2"], "prints one completion"),
        (["generate", "x", "-o", "min_p=0", "-o", "min_p=1"], "min_p is given twice"),
        (["generate", "x", "--max-tokens", "4", "-o", "max_tokens=5"], "new_tokens is given twice"),
        (["generate", "x", "--top-k", "4", "-o", "top_k=5"], "top_k is given twice"),
        (["generate", "x", "--threads", "0"], "0 is not in the range"),
        (["generate", "x", "--max-new-tokens", "many"], "'many' is not a valid integer"),
        (["generate", "a\udcff\udcfeb"], "the prompt is not UTF-8"),
        (["bench", "--tokens", "0"], "0 is not in the range x>=1"),
        (["bench", "--rounds", "0"], "0 is not in the range x>=1"),
        (["bench", "--depth", "-1"], "-1 is not in the range x>=0"),
        (["bench", "--prefill", "-1"], "-1 is not in the range x>=0"),
    ],
)
def test_a_wrong_option_is_refused_before_loading(monkeypatch, arguments, words):
    monkeypatch.setattr(loading, "load_model", lambda *args: pytest.fail("loaded"))
    ran = run(*arguments)
    assert ran.exit_code == 2
    assert words in " ".join(ran.stderr.split())


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("weights", "int3", "'int3', expected one of auto, "),
        ("activations", "int3", "'int3', expected one of int8, "),
        ("kv", "int3", "'int3', expected one of auto, "),
        ("threads", "257", "257, expected 1 to 256"),
    ],
)
def test_a_wrong_option_is_refused_before_anything_is_fetched(monkeypatch, option, value, expected):
    monkeypatch.setattr(hub, "find", lambda *_, **__: pytest.fail("looked for"))
    monkeypatch.delenv("RILLM_DEBUG", raising=False)
    ran = run("generate", "x", f"--{option}", value)
    assert (ran.exit_code, ran.stdout) == (1, "")
    assert ran.stderr.startswith(f"rillm: {option} is {expected}")


def test_standard_input_that_is_no_text_is_refused(monkeypatch):
    monkeypatch.setattr(loading, "load_model", lambda *args: pytest.fail("loaded"))
    ran = run("generate", input=b"\xff\xfe")
    assert ran.exit_code == 2
    assert "not UTF-8" in ran.stderr


@pytest.mark.parametrize(
    "error", [ModelNotFound("no model\n  'x' anywhere"), ValueError("no model 'x' anywhere")]
)
def test_an_error_is_one_line(monkeypatch, error):
    def fail(*args):
        raise error

    monkeypatch.setattr(loading, "load_model", fail)
    monkeypatch.delenv("RILLM_DEBUG", raising=False)
    ran = run("generate", "x")
    assert (ran.exit_code, ran.stdout) == (1, "")
    assert ran.stderr == "rillm: no model 'x' anywhere\n"
    monkeypatch.setenv("RILLM_DEBUG", "1")
    assert run("generate", "x").exception is error


def test_info_is_readable(model):
    ran = run("info", "scripted")
    shown = dict(line.split("  ", 1) for line in ran.stdout.splitlines())
    shown = {name: value.strip() for name, value in shown.items()}
    assert shown["parameters"] == "134.5 million"
    assert shown["shapes"] == "dim 576, n_layers 30"
    assert shown["weights"] == "q4_1 81.0 MB, q8 30.0 MB"
    assert shown["KV cache"] == "f16, 23,040 bytes per position"
    assert shown["bytes per token"] == "111.0 MB"
    assert shown["ISA"] == "avx2 (available: portable, avx2)"
    assert shown["threads"] == "2 (2 physical performance cores among 4 allowed CPUs)"
    assert shown["huge pages"] == "yes"
    assert "re-encoded" not in shown


def test_info_json_is_the_model_s_own(model):
    assert json.loads(run("info", "scripted", "--json").stdout) == INFO


def test_pull_draws_its_progress_on_stderr_and_prints_the_path(monkeypatch):
    def pull(name, progress):
        for done in (0, 50, 100):
            progress(done, 100, f"{name}[bold]")
        return Path("/cache/model.gguf")

    monkeypatch.setattr(hub, "pull", pull)
    ran = run("pull", "some/model")
    assert (ran.exit_code, ran.stdout) == (0, "/cache/model.gguf\n")
    assert "some/model[bold]" in ran.stderr


def test_a_failed_pull_is_one_line(monkeypatch):
    def pull(name, progress):
        raise DownloadError("the index is not reachable; tried https://example.org")

    monkeypatch.setattr(hub, "pull", pull)
    ran = run("pull", "some/model")
    assert ran.exit_code == 1
    assert ran.stderr == "rillm: the index is not reachable; tried https://example.org\n"


def test_the_home_of_nobody_is_no_model(monkeypatch, tmp_path):
    monkeypatch.setenv("RILLM_HOME", str(tmp_path))
    monkeypatch.delenv("RILLM_DEBUG", raising=False)
    for command in (["cache", "clear"], ["info"]):
        ran = run(*command, "~nobody-of-this-name/x")
        assert ran.exit_code == 1
        assert ran.stderr.startswith("rillm: ~nobody-of-this-name/x: no such file or folder")


def test_the_version_is_the_package_s(monkeypatch):
    monkeypatch.setattr("importlib.metadata.version", lambda name: f"1.2.3 of {name}")
    assert run("--version").stdout == "rillm 1.2.3 of rillm\n"


def test_the_package_runs_as_the_command():
    ran = subprocess.run(
        [sys.executable, "-m", "rillm", "--version"], env=child_environment(), capture_output=True
    )
    assert ran.stdout.startswith(b"rillm "), ran.stderr


def test_help_imports_no_heavy_library():
    code = (
        "import sys; from click.testing import CliRunner; from rillm.cli import main;"
        "CliRunner().invoke(main, ['generate', '--help']);"
        "print(*{'rich', 'tokenizers', 'jinja2', 'huggingface_hub'} & set(sys.modules))"
    )
    ran = subprocess.run([sys.executable, "-c", code], env=child_environment(), capture_output=True)
    assert ran.stdout.strip() == b"", ran.stderr


def child_environment() -> dict[str, str]:
    paths = [Path(__file__).parent, Path(rillm.__file__).parents[1], os.environ.get("PYTHONPATH")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(str(path) for path in paths if path)}


@pytest.fixture
def start():
    """Starts the command in its own process, with a slow scripted model.

    It writes "ready" to stderr when the prompt is being evaluated, if that is slow, else when three
    tokens are shown.
    """
    started = []

    def start(*arguments: str, prefill_seconds=0.0, step_seconds=0.0) -> subprocess.Popen:
        code = f"""
import signal, sys, time, test_cli
signal.signal(signal.SIGINT, signal.default_int_handler)

def before_forward(n_before):
    if n_before == {0 if prefill_seconds else 3}:
        print("ready", file=sys.stderr, flush=True)
    time.sleep({step_seconds} if n_before else {prefill_seconds})

model = test_cli.ScriptedModel(b"x" * 900)
model.before_forward = before_forward
test_cli.loading.load_model = lambda *args: model
test_cli.main(sys.argv[1:])
"""
        process = subprocess.Popen(
            [sys.executable, "-c", code, "generate", "Where?", *arguments],
            env=child_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        started.append(process)
        assert process.stderr.readline() == b"ready\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()


@pytest.mark.parametrize("options", [[], ["--json"], ["--trace"]])
def test_closed_standard_streams_are_no_error_of_ours(options):
    """What is printed to a closed one goes nowhere; a prompt cannot come from one."""

    def run(shell: str) -> tuple[int, bytes]:
        code = (
            "import sys, test_cli; model = test_cli.ScriptedModel(b'Paris.');"
            "test_cli.loading.load_model = lambda *args: model; test_cli.main(sys.argv[1:])"
        )
        command = ["sh", "-c", f'"$@" {shell}', "sh", sys.executable, "-c", code, "generate"]
        words = [] if "<&-" in shell else ["Where?"]
        ran = subprocess.run(
            [*command, *words, *options], env=child_environment(), capture_output=True
        )
        return ran.returncode, ran.stderr

    code, err = run(">&-")
    assert code == 0 and err.count(b"\n") <= 1  # the line of figures
    assert run("2>&-") == (0, b"") and run(">&- 2>&-") == (0, b"")
    code, err = run("<&-")
    assert code == 2 and b"no prompt: give it as an argument" in err


@pytest.mark.parametrize("as_json", [False, True])
def test_ctrl_c_stops_at_once_and_says_how_far_it_came(start, as_json):
    process = start(*["--json"] * as_json, step_seconds=0.02)
    process.send_signal(signal.SIGINT)
    interrupted = time.perf_counter()
    out, err = process.communicate(timeout=10)
    assert time.perf_counter() - interrupted < 0.5
    assert process.returncode == 130
    words = err.decode().split()
    assert words[:3] == ["rillm:", "interrupted", "after"]
    assert err.count(b"\n") == 1
    n_tokens = int(words[3])
    assert 3 <= n_tokens < 100
    if as_json:
        record = json.loads(out)
        assert record["finish_reason"] == "cancelled"
        assert len(record["token_ids"]) == n_tokens
    else:
        assert out == b"x" * n_tokens + b"\n"


def test_ctrl_c_before_the_first_token(start):
    process = start(prefill_seconds=60)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=10)
    assert (process.returncode, out) == (130, b"")
    assert err == b"rillm: interrupted before the first token\n"


def test_a_broken_pipe_ends_quietly(start):
    process = start(step_seconds=0.01)
    assert process.stdout.read(3) == b"xxx"
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait(timeout=10) == 1
