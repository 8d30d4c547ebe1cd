"""The command against the default model, fetched as a user would: skipped with RILLM_OFFLINE=1."""

import json
import os
import shlex
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(
    os.environ.get("RILLM_OFFLINE", "") not in ("", "0"),
    reason="RILLM_OFFLINE is set: the default model may not be fetched",
)
QUESTION = "What is the capital of France?"
ANSWER = "The capital of France is Paris.\n"
COMMAND = [
    sys.executable,
    "-c",
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler);"
    "from rillm.cli import main; main(prog_name='rillm')",
]


def rillm(*arguments: str) -> subprocess.CompletedProcess:
    ran = subprocess.run([*COMMAND, *arguments], capture_output=True, timeout=300)
    assert ran.returncode == 0, ran.stderr.decode()
    return ran


@pytest.fixture(scope="module", autouse=True)
def default_model():
    rillm("pull", "smollm2-135m")


def test_the_model_answers_through_its_chat_template():
    """Geography says Paris; in f32, so that no rounding of int8 decides the first word."""
    assert rillm("generate", QUESTION, "--weights", "f32").stdout == ANSWER.encode()


def test_int16_activations_answer_as_floats_do():
    """From the file's own four and eight bits."""
    assert rillm("generate", QUESTION, "--activations", "int16").stdout == ANSWER.encode()


def test_the_command_ends_with_one_line_of_figures():
    ran = rillm("generate", QUESTION, "--max-new-tokens", "16")
    assert len(ran.stdout.decode().strip()) > 16
    line = ran.stderr.decode()
    assert line.count("\n") == 1
    assert line.startswith("16 tokens, ")
    for part in (" tokens/s, ", " GB/s, weights q4", " thread"):
        assert part in line


def test_the_same_seed_gives_the_same_text_whatever_the_threads():
    options = ["--temperature", "0.8", "--top-p", "0.95", "--max-new-tokens", "24", "--json"]
    one = json.loads(rillm("generate", QUESTION, *options, "--threads", "1").stdout)
    again = ["--seed", str(one["seed"]), "--threads", "2"]
    two = json.loads(rillm("generate", QUESTION, *options, *again).stdout)
    assert two["token_ids"] == one["token_ids"]
    assert two["text"] == one["text"]


def test_raw_continues_the_prompt():
    """As transformers does in f32 on the same file, greedily: " Paris.\\n\\nThe"."""
    arguments = ["The capital of France is", "--raw", "--weights", "f32", "--max-new-tokens", "5"]
    record = json.loads(rillm("generate", *arguments, "--json").stdout)
    assert record["token_ids"] == [7042, 30, 198, 198, 504]
    assert record["text"] == " Paris.\n\nThe"
    assert record["finish_reason"] == "length"


def test_the_trace_on_the_page_is_what_its_command_prints():
    page = (Path(__file__).parents[1] / "docs" / "loop.md").read_text()
    block = page.split("    $ rillm ")[1].split("\n\n`model`")[0]
    command, _, shown = textwrap.dedent(f"    {block}").replace("\\\n", "").partition("\n")
    printed = rillm(*shlex.split(command)).stdout.decode().strip().splitlines()
    assert len(printed) == len(shown.strip().splitlines()) == 3 * 7 - 1
    for real, line in zip(printed, shown.strip().splitlines(), strict=True):
        assert real.startswith(line[:-1]) if line.endswith("…") else real == line


def test_info_tells_of_the_model():
    info = json.loads(rillm("info", "smollm2-135m", "--json").stdout)
    assert info["family"] == "llama"
    assert 130e6 < info["n_parameters"] < 165e6
    assert info["bytes_per_token"] == pytest.approx(sum(info["weights"].values()), rel=0.25)
    readable = rillm("info", "smollm2-135m").stdout.decode()
    assert info["isa"] in readable


@pytest.fixture
def start():
    started = []

    def start(*arguments: str) -> subprocess.Popen:
        process = subprocess.Popen(
            [*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()


def assert_stops_at_once(process: subprocess.Popen) -> None:
    process.send_signal(signal.SIGINT)
    interrupted = time.perf_counter()
    _, err = process.communicate(timeout=30)
    assert time.perf_counter() - interrupted < 0.5
    assert process.returncode == 130
    assert err.startswith(b"rillm: interrupted")


def test_ctrl_c_stops_a_text_within_half_a_second(start):
    process = start("generate", "--raw", "Once upon a time")
    assert process.stdout.read(1)
    assert_stops_at_once(process)


def test_ctrl_c_stops_a_long_prompt_within_half_a_second(start):
    process = start("generate", "--raw", "word " * 8000, "--weights", "f32")
    time.sleep(3)
    assert process.poll() is None, "the prompt was too short to be interrupted"
    assert_stops_at_once(process)
