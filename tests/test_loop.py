"""The loop with a scripted model: lengths, ends, what the session holds afterwards."""

import itertools
from pathlib import Path

import numpy as np
import pytest

import small_tokenizers as small
from rillm.decoding import prefill
from rillm.decoding.loop import collect, stream
from rillm.decoding.order import PRESETS
from rillm.decoding.sampling import Sampling
from rillm.decoding.stopping import CAUSES, Finish
from rillm.errors import ContextFull, SessionBusy

TOKENIZER = small.byte_level(["?\n", "}}", " }", "a,b", ",c", "<ST", "ART>"])
EOS = TOKENIZER.id("<eos>")


def word(text: str) -> int:
    return TOKENIZER.id("".join(small.BYTE_NAMES[byte] for byte in text.encode()))


def start(script, prompt=(1, 2, 3), eos=(EOS,), context=1000, **options):
    session = small.ScriptedSession(list(script), context=context)
    return session, stream(session, TOKENIZER, eos, prompt, Sampling(**options))


def run(script, **options):
    _, pieces = start(script, **options)
    return collect(pieces)


def test_the_pieces_join_to_the_result():
    _, pieces = start([*b"Hello", EOS])
    pieces = list(pieces)
    assert [piece.text for piece in pieces] == ["H", "e", "l", "l", "o", ""]
    assert [piece.token_ids for piece in pieces] == [(id_,) for id_ in [*b"Hello", EOS]]
    assert [piece.index for piece in pieces] == list(range(6))
    assert [piece.finish for piece in pieces[:-1]] == [None] * 5
    result = collect(pieces)
    assert result.text == "Hello"
    assert result.token_ids == [*b"Hello", EOS]
    assert result.finish == Finish("stop", "eos", EOS, 5, len("Hello"))
    assert result.finish_reason == "stop"


def test_abetlen_llama_cpp_python_57():
    """T1: an emoji of four tokens comes in one piece."""
    _, pieces = start([*"a🦙b".encode(), EOS])
    assert [piece.text for piece in pieces] == ["a", "", "", "", "🦙", "b", ""]


def test_ggml_org_llama_cpp_14937():
    """T2: the limit within a character ends in U+FFFD, not in an error."""
    result = run([0xF0], max_new_tokens=1)
    assert (result.text, result.finish_reason) == ("\ufffd", "length")


def test_ggml_org_llama_cpp_9867():
    """S1: "?" before the stop string in the same token is kept."""
    assert run([word("?\n")], stop="\n").text == "?"


@pytest.mark.parametrize("stop", ["a", "\n", "🦙"])
def test_huggingface_transformers_31448(stop):
    """S4: stop strings of one character."""
    result = run([*f"xx{stop}yy".encode(), EOS], stop=[stop])
    assert (result.text, result.finish.detail) == ("xx", stop)


@pytest.mark.parametrize(
    ("tokens", "stop", "text"),
    [(["}}"], "}", ""), ([" }"], "}", " "), (["a,b", ",c"], "b,c", "a,")],
)
def test_oobabooga_textgen_1369(tokens, stop, text):
    """S6: a stop string is found inside and across tokens."""
    result = run([*map(word, tokens), EOS], stop=(stop,))
    assert result.text == text
    assert result.finish == Finish("stop", "stop_string", stop, len(tokens) - 1, len(text))


def test_oobabooga_textgen_2133():
    """S8: nothing of "<START>" is ever shown."""
    _, pieces = start([ord("o"), word("<ST"), word("ART>")], stop=("<START>",))
    assert [piece.text for piece in pieces] == ["o", "", ""]


@pytest.mark.parametrize("eos", [128, 131])
def test_vllm_project_vllm_4180(eos):
    """S9: any of several end tokens ends the text, with no token more."""
    result = run([ord("a"), eos, ord("b")], eos=(128, 131))
    assert (result.text, result.token_ids) == ("a", [ord("a"), eos])
    assert result.finish == Finish("stop", "eos", eos, 1, 1)


@pytest.mark.parametrize("n", [0, 1, 2, 7])
def test_ericlbuehler_mistral_rs_1539(n):
    """S10: max_new_tokens=N gives exactly N tokens, and no forward for a token not asked for."""
    session, pieces = start([ord("a")], max_new_tokens=n)
    result = collect(pieces)
    assert len(result.token_ids) == result.timings.n_generated == n
    assert result.finish == Finish("length", "max_new_tokens", n, n - 1, n)
    assert len(session.calls) == max(n, 1)  # of the prompt, and of each token but the last


def test_no_end_before_min_new_tokens():
    """The script wants to end at once: the next best is taken three times, id 0 among equals."""
    result = run([EOS], min_new_tokens=3, max_new_tokens=6)
    assert result.token_ids == [0, 0, 0, EOS]
    assert result.finish == Finish("stop", "eos", EOS, 3, 3)
    stopped = run([ord("a")], stop_token_ids=[ord("a")], stop="\0", min_new_tokens=2)
    assert stopped.token_ids == [0, 0] and stopped.text == "\0"
    assert stopped.finish == Finish("stop", "stop_string", "\0", 1, 1)


def test_vllm_project_vllm_28172():
    """S11: tokens are counted as sampled, also where encoding the text again gives others."""
    result = run([*b"Hello"], max_new_tokens=5, eos=())
    merged = small.byte_level(["Hello"])
    assert merged.id("Hello") == 256, "one token would do for the text"
    assert len(result.token_ids) == result.timings.n_generated == 5


def test_ml_explore_mlx_lm_905():
    """S12: a limit inside a call of a tool is a limit like any other."""
    result = run([*b'<tool_call>{"name": "x"}</tool_call>', EOS], max_new_tokens=14)
    assert (result.text, result.finish_reason) == ('<tool_call>{"n', "length")


def test_the_context_ends_the_text():
    """A prompt of 3 in a context of 8 leaves room for 5 tokens, whatever was asked for."""
    for asked in (None, 6, 2**31 - 1):
        result = run([ord("a")], context=8, max_new_tokens=asked)
        assert result.finish == Finish("length", "context", 5, 4, 5)
        assert len(result.token_ids) == 5


def test_a_prompt_that_fills_the_context_leaves_no_room():
    session, pieces = start([ord("a")], prompt=[1] * 8, context=8)
    assert collect(pieces).finish == Finish("length", "context", 0, -1, 0)
    assert session.tokens == [1] * 8


def test_a_prompt_beyond_the_context_is_refused_at_once():
    with pytest.raises(ContextFull, match=r"9 tokens.*context is 8"):
        start([1], prompt=[1] * 9, context=8)


def test_an_empty_prompt_is_refused_at_once():
    with pytest.raises(ValueError, match="no tokens"):
        start([1], prompt=[])


@pytest.mark.parametrize("prompt", [[1, -1], [300], [2**40]])
def test_a_prompt_beyond_the_vocabulary_is_refused_at_once(prompt):
    with pytest.raises(ValueError, match=f"token id {prompt[-1]}: expected 0 to 299"):
        start([1], prompt=prompt)


@pytest.mark.parametrize("prompt", [[1.5], ["a"], [None], 5])
def test_a_prompt_that_is_no_ids_is_refused_at_once(prompt):
    with pytest.raises(TypeError):
        start([1], prompt=prompt)


def test_the_last_token_is_not_appended():
    session, pieces = start([*b"abc", EOS], prompt=[7, 8])
    collect(pieces)
    assert session.tokens == [7, 8, *b"abc"]


def test_closing_the_iterator_leaves_the_session_usable():
    session, pieces = start([*b"abcdef"], prompt=[7, 8])
    seen = [next(pieces) for _ in range(3)]
    pieces.close()
    assert session.tokens == [7, 8, *b"ab"]
    assert collect(seen).token_ids == [*b"abc"]
    more = stream(session, TOKENIZER, (EOS,), [ord("c")], Sampling(max_new_tokens=1))
    assert collect(more).token_ids == [ord("a")], "the script starts again after a prompt"
    assert session.tokens == [7, 8, *b"abc"]


def test_closing_at_odd_moments():
    """Before the start, twice, at the end, and from inside a callback."""
    session, pieces = start([*b"abc"])
    pieces.close()
    pieces.close()
    assert (list(pieces), session.calls) == ([], [])
    _, pieces = start([*b"ab", EOS])
    assert len(list(pieces)) == 3
    pieces.cancel()
    pieces.close()
    closing = []
    session = small.ScriptedSession([*b"abcdef"])
    options = Sampling(max_new_tokens=5)
    pieces = stream(session, TOKENIZER, (), [1], options, on_step=lambda _: closing[0].close())
    closing.append(pieces)
    assert [piece.finish and piece.finish.cause for piece in pieces] == [None, "cancelled"]
    assert session.tokens == [1, ord("a")]


def test_a_session_that_something_else_uses_between_two_pieces():
    """H5: a second stream, a rewind: the first would go on in another text, and says so instead."""
    session, first = start([*b"abcdef"], prompt=[7, 8])
    next(first)
    collect(stream(session, TOKENIZER, (EOS,), [9], Sampling(max_new_tokens=1)))
    with pytest.raises(SessionBusy, match="holds 3 tokens now"):
        next(first)
    session, pieces = start([*b"abcdef"], prompt=[7, 8])
    next(pieces)
    session.rewind(1)
    with pytest.raises(SessionBusy, match="holds 1 tokens now"):
        next(pieces)
    session, pieces = start([*b"abcdef"], prompt=[7, 8], n=2, max_new_tokens=1)
    next(pieces)
    session.step(9)  # between two completions
    with pytest.raises(SessionBusy):
        next(pieces)


def test_another_text_of_the_same_length_is_seen_too():
    session, pieces = start([*b"abcdef"], prompt=[7, 8])
    next(pieces)
    session.rewind(1)
    session.step(9)
    with pytest.raises(SessionBusy):
        next(pieces)
    session, pieces = start([ord("a")], prompt=[7, 8], max_new_tokens=1)
    list(pieces)
    session.step(9)  # it is at its end, and looks no more
    assert list(pieces) == []


@pytest.mark.parametrize("hook", ["on_step", "on_prefill", "logits_processors"])
def test_a_callback_that_uses_the_session(hook):
    session = small.ScriptedSession([*b"abcdef"])

    def use(*_):
        session.step(4)

    hooks = {hook: use}
    options = Sampling(logits_processors=hooks.pop("logits_processors", ()))
    with pytest.raises(SessionBusy, match="callback"):
        list(stream(session, TOKENIZER, (EOS,), [1, 2], options, **hooks))


def test_several_completions_of_nothing():
    _, pieces = start([ord("a")], max_new_tokens=0, n=3)
    ends = [(piece.completion, piece.token_ids, piece.finish.cause) for piece in pieces]
    assert ends == [(each, (), "max_new_tokens") for each in range(3)]


def test_several_completions_with_a_stop_string_and_mirostat():
    """Each is the text of its own noise, however many others there are, and each is cut."""
    options = {"temperature": 3.0, "seed": 8, "mirostat_mode": 2, "stop": "a", "max_new_tokens": 40}

    def texts(n):
        _, pieces = start([ord("a")], eos=(), n=n, **options)
        found = [[] for _ in range(n)]
        for piece in pieces:
            found[piece.completion].append(piece)
        return [collect(each) for each in found]

    four = texts(4)
    assert len({tuple(result.token_ids) for result in four}) == 4
    assert [r.token_ids for r in texts(2)] == [r.token_ids for r in four[:2]]
    assert any(result.finish.cause == "stop_string" for result in four)
    assert not any("a" in result.text for result in four)


def test_cancel_ends_every_completion():
    session, pieces = start([*b"abcdef"], n=3)
    assert next(pieces).text == "a"
    pieces.cancel()
    assert [(p.completion, p.finish.cause) for p in pieces] == [(n, "cancelled") for n in range(3)]
    assert session.tokens == [1, 2, 3]


def test_an_interrupted_prompt_leaves_the_session_usable():
    session, pieces = start([*b"ab", EOS], prompt=[1] * 100)
    prefill_once = session.prefill

    def interrupted(ids, chunk=None):
        prefill_once(ids)
        raise KeyboardInterrupt

    session.prefill = interrupted
    with pytest.raises(KeyboardInterrupt):
        next(pieces)
    assert list(pieces) == [] and session.position == 16
    session.prefill = prefill_once
    assert collect(stream(session, TOKENIZER, (EOS,), [2], Sampling())).text == "ab"


def test_prompt_logprobs_need_few_rows_at_once():
    """Never the logits of the whole prompt: 32 rows at most."""
    session = small.ScriptedSession([EOS], context=2000)
    n_rows = []

    def logits(ids):
        n_rows.append(len(ids))
        return np.stack([session.prefill([token]) for token in ids])

    session.logits = logits
    options = Sampling(prompt_logprobs=1)
    pieces = list(stream(session, TOKENIZER, (EOS,), [1] * 900, options))
    assert len(pieces[0].prompt_logprobs) == sum(n_rows) == 900
    assert max(n_rows) <= 32


def test_an_interrupted_step_leaves_the_session_usable():
    """Ctrl-C is seen after the engine has returned: the token is appended, its logits are lost."""
    session, pieces = start([*b"abcdef"], prompt=[7, 8])
    step = session.step

    def interrupted(token):
        step(token)
        raise KeyboardInterrupt

    next(pieces)
    session.step = interrupted
    with pytest.raises(KeyboardInterrupt):
        next(pieces)
    assert session.tokens == [7, 8, ord("a")]
    assert list(pieces) == []


def test_pieces_without_a_last_one_count_as_cancelled():
    _, pieces = start([*b"abcdef"])
    result = collect(itertools.islice(pieces, 2))
    assert (result.text, result.finish_reason) == ("ab", "cancelled")
    assert result.finish == Finish("cancelled", "cancelled", None, 1, 2)
    with pytest.raises(ValueError, match="no pieces"):
        collect([])


def test_a_drawn_seed_is_reported_and_repeats():
    """Without a seed two runs differ, and the reported seed gives the same tokens again."""
    runs = [run([0], max_new_tokens=40, temperature=5.0, eos=()) for _ in range(2)]
    assert runs[0].seed != runs[1].seed
    assert runs[0].token_ids != runs[1].token_ids
    again = run([0], max_new_tokens=40, temperature=5.0, eos=(), seed=runs[0].seed)
    assert again.token_ids == runs[0].token_ids
    assert again.seed == runs[0].seed


def test_a_given_seed_is_reported():
    assert run([0], max_new_tokens=0, seed=2**64 - 1).seed == 2**64 - 1


def test_the_noise_belongs_to_the_position():
    """A session cut off after three tokens and continued with the seed says what one run says."""
    options = {"temperature": 5.0, "seed": 11, "eos": ()}
    whole = run([0], max_new_tokens=12, **options).token_ids
    first = run([0], max_new_tokens=3, **options).token_ids
    rest = run([0], prompt=(1, 2, 3, *first), max_new_tokens=9, **options).token_ids
    assert first + rest == whole


def test_ggml_org_ggml_37():
    """P4: temperature 0 is the likeliest token for every seed, and 1e-45 is as good as 0."""
    for seed in range(20):
        for temperature in (0.0, 1e-45):
            result = run([*b"ab", EOS], temperature=temperature, seed=seed)
            assert result.text == "ab"


def test_opennmt_ctranslate2_586():
    """P5: top_k beyond the vocabulary, 0 and -1 give the tokens that no top_k gives."""
    options = {"temperature": 3.0, "seed": 5, "max_new_tokens": 30, "eos": ()}
    plain = run([0], **options).token_ids
    assert len(set(plain)) > 5
    for top_k in (9_999_999, 2**40, 0, -1):
        assert run([0], top_k=top_k, **options).token_ids == plain


def test_a_long_prompt_goes_in_short_calls():
    """Ctrl-C waits for the call that runs: the calls are small, and make up the prompt."""
    prompt = [place % 256 for place in range(900)]
    session, pieces = start([EOS], prompt=prompt, context=2000)
    collect(pieces)
    assert session.tokens == prompt
    assert sum(session.calls) == 900
    assert max(session.calls) <= 512


def test_a_slow_prompt_goes_in_the_shortest_calls(monkeypatch):
    session, pieces = start([EOS], prompt=range(100))
    clock = itertools.count()
    monkeypatch.setattr(prefill, "perf_counter", lambda: next(clock))
    collect(pieces)
    assert session.calls == [16] * 6 + [4]


def test_the_timings_add_up():
    timings = run([*b"abc", EOS]).timings
    assert (timings.n_prompt, timings.n_generated) == (3, 4)
    assert 0 < timings.prefill_seconds <= timings.time_to_first_token
    assert timings.time_to_first_token + timings.decode_seconds <= timings.seconds
    assert timings.prefill_tokens_per_second == 3 / timings.prefill_seconds
    assert timings.decode_tokens_per_second == 3 / timings.decode_seconds


class PassingSession(small.ScriptedSession):
    """One that ends with its stream."""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


def test_no_token_no_rate():
    """A prompt that nothing follows is not even computed, unless the session stays."""
    session, options = PassingSession([0]), Sampling(max_new_tokens=0)
    timings = collect(stream(session, TOKENIZER, (), [1], options, close_session=True)).timings
    assert session.calls == []
    assert timings.decode_tokens_per_second == timings.prefill_tokens_per_second == 0.0


def test_the_page_says_what_the_code_does():
    """The tables of docs/loop.md: orders of filters, and reasons with their causes."""
    page = (Path(__file__).parents[1] / "docs" / "loop.md").read_text()
    rows = [row.strip("|").split("|") for row in page.splitlines() if row.startswith("|")]
    cells = [[cell.strip().replace("`", "") for cell in row] for row in rows]
    orders = {row[0].strip('"'): row[2].replace("*", "").split(", ") for row in cells}
    for name, order in PRESETS.items():
        assert orders[name] == list(order)
    reason, told = "", {}
    for row in cells[cells.index(["reason", "cause", "what happened"]) + 2 :]:
        reason = row[0].strip('"') or reason
        told[row[1]] = reason
    assert told == CAUSES
