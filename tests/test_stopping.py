"""Stop strings against brute force on the text, and the finish record of every cause."""

import random

import pytest

import small_tokenizers as small
from rillm.decoding.sampling import Sampling
from rillm.decoding.stopping import Ending, Finish, StopStrings


def run(pieces: list[str], stops: tuple[str, ...]) -> tuple[list[str], str | None]:
    """The shown pieces and the stop string found, reading no further than it."""
    strings = StopStrings(stops)
    shown = []
    for piece in pieces:
        shown.append(strings.push(piece))
        if strings.found is not None:
            return shown, strings.found
    return [*shown, strings.flush()], None


def test_ggml_org_llama_cpp_9867():
    """S1: what stands before the stop string in the same token is shown."""
    assert run(["?\n"], ("\n",)) == (["?"], "\n")


@pytest.mark.parametrize("stop", ["a", "\n", "🦙"])
def test_huggingface_transformers_31448(stop):
    """S4: stop strings of one character."""
    shown, found = run([f"x{stop}y"], (stop,))
    assert ("".join(shown), found) == ("x", stop)


@pytest.mark.parametrize(
    ("pieces", "stop", "expected"),
    [(["}}"], "}", ""), ([" }"], "}", " "), (["a,b", ",c"], "b,c", "a,"), (["a", "b"], "ab", "")],
)
def test_oobabooga_textgen_1369(pieces, stop, expected):
    """S6: stop strings are found in the text, whatever the tokens are."""
    shown, found = run(pieces, (stop,))
    assert ("".join(shown), found) == (expected, stop)


def test_oobabooga_textgen_2133():
    """S8: no beginning of a stop string is shown that is completed later."""
    assert run(["ok <", "STA", "RT> more"], ("<START>",)) == (["ok ", "", ""], "<START>")
    assert run(["ok <", "STA", "Y>"], ("<START>",)) == (["ok ", "", "<STAY>", ""], None)
    assert run(["ok <STA"], ("<START>",)) == (["ok ", "<STA"], None)


def test_the_earliest_in_the_text_wins():
    assert run(["xaybz"], ("b", "a")) == (["x"], "a")


def test_text_that_is_not_settled_yet_is_searched_too():
    strings = StopStrings(("b\n",))
    assert strings.push("ab", "") == "a"
    assert strings.push("", "\n") == ""
    assert strings.found == "b\n"


def test_random_texts_against_brute_force():
    """After each piece: shown + found = the text cut at the earliest stop string in it."""
    draw = random.Random(8)
    for _ in range(5000):
        stops = tuple({"".join(draw.choices("ab", k=draw.randrange(1, 5))) for _ in range(3)})
        pieces = ["".join(draw.choices("abc", k=draw.randrange(4))) for _ in range(8)]
        text, expected = "", None
        for piece in pieces:
            text += piece
            starts = [text.find(stop) for stop in stops if stop in text]
            if starts:
                expected = text[: min(starts)]
                break
        shown, found = run(pieces, stops)
        assert "".join(shown) == (text if expected is None else expected)
        assert (found is not None) == (expected is not None)


def ending(limit: int = 100, **options) -> tuple[Ending, small.SmallTokenizer]:
    tokenizer = small.byte_level()
    eos = [tokenizer.id("<eos>")]
    return Ending(tokenizer, eos, Sampling(**options), limit, "max_new_tokens"), tokenizer


def test_an_end_token_gives_no_text_and_frees_the_held_text():
    checks, tokenizer = ending(stop=("ab",))
    eos = tokenizer.id("<eos>")
    assert checks.check(ord("a")) == ("", None)
    assert checks.check(eos) == ("a", Finish("stop", "eos", eos, 1))


def test_a_stop_token_gives_no_text():
    checks, _ = ending(stop_token_ids=(ord("x"),))
    assert checks.check(ord("x")) == ("", Finish("stop", "stop_token", ord("x"), 0))


def test_ignore_eos_goes_on():
    checks, tokenizer = ending(ignore_eos=True)
    assert checks.check(tokenizer.id("<eos>")) == ("", None)
    assert checks.check(ord("a")) == ("a", None)


def test_a_stop_string_wins_over_the_limit_at_the_same_token():
    checks, _ = ending(limit=1, stop=("a",))
    assert checks.check(ord("a")) == ("", Finish("stop", "stop_string", "a", 0))


def test_the_limit_frees_the_held_text():
    checks, _ = ending(limit=2, stop=("bc",))
    assert checks.check(ord("a")) == ("a", None)
    assert checks.check(ord("b")) == ("b", Finish("length", "max_new_tokens", 2, 1))


def test_a_newline_as_a_byte_token_stops_at_once():
    tokenizer = small.byte_fallback()
    checks = Ending(tokenizer, (), Sampling(stop="\n"), 9, "context")
    assert checks.check(tokenizer.id("Hello")) == ("Hello", None)
    assert checks.check(tokenizer.id("<0x0A>")) == ("", Finish("stop", "stop_string", "\n", 1))
