"""Stop strings against brute force on the text, and the finish record of every cause."""

import os
import random
import time

import pytest

import small_tokenizers as small
from rillm.decoding import stopping
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
    assert checks.check(eos) == ("a", Finish("stop", "eos", eos, 1, 1))


def test_a_stop_token_gives_no_text():
    checks, _ = ending(stop_token_ids=(ord("x"),))
    assert checks.check(ord("x")) == ("", Finish("stop", "stop_token", ord("x"), 0, 0))


def test_ignore_eos_goes_on():
    checks, tokenizer = ending(ignore_eos=True)
    assert checks.check(tokenizer.id("<eos>")) == ("", None)
    assert checks.check(ord("a")) == ("a", None)


def test_a_stop_string_wins_over_the_limit_at_the_same_token():
    checks, _ = ending(limit=1, stop=("a",))
    assert checks.check(ord("a")) == ("", Finish("stop", "stop_string", "a", 0, 0))


def test_the_limit_frees_the_held_text():
    checks, _ = ending(limit=2, stop=("bc",))
    assert checks.check(ord("a")) == ("a", None)
    assert checks.check(ord("b")) == ("b", Finish("length", "max_new_tokens", 2, 1, 2))


def test_a_newline_as_a_byte_token_stops_at_once():
    tokenizer = small.byte_fallback()
    checks = Ending(tokenizer, (), Sampling(stop="\n"), 9, "context")
    assert checks.check(tokenizer.id("Hello")) == ("Hello", None)
    finish = Finish("stop", "stop_string", "\n", 1, len("Hello"))
    assert checks.check(tokenizer.id("<0x0A>")) == ("", finish)


def test_the_stop_string_may_stay_in_the_text():
    """Of "xab" and then "c", with "bc" to stop at: up to it, or behind it."""
    for include, text in ((False, "xa"), (True, "xabc")):
        checks, _ = ending(stop="bc", include_stop_str_in_output=include)
        shown = [checks.check(token) for token in b"xabc"]
        assert "".join(piece for piece, _ in shown) == text
        assert shown[-1][1] == Finish("stop", "stop_string", "bc", 3, 2)


def test_of_two_stop_strings_that_begin_together_the_shorter_wins():
    strings = StopStrings(("abc", "ab"), include=True)
    assert strings.push("xabcd") == "xab"
    assert (strings.found, strings.begin) == ("ab", 1)


@pytest.mark.parametrize("least", range(6))
def test_no_stop_string_before_min_new_tokens(least):
    """Of "ababab" the first "ab" that is completed by token `least` or a later one counts."""
    checks, _ = ending(stop="ab", min_new_tokens=least)
    text = ""
    for token in b"ababab":
        piece, finish = checks.check(token)
        text += piece
        if finish:
            break
    expected = next(place for place in (1, 3, 5) if place + 1 >= least)
    assert (text, finish.token_index) == ("ab" * (expected // 2), expected)
    assert finish.character_index == expected - 1


def test_the_time_is_over(monkeypatch):
    """After the token at which it is; a stop string at that token is the cause all the same."""
    clock = [10.0]
    monkeypatch.setattr(stopping, "perf_counter", lambda: clock[0])
    tokenizer = small.byte_level()

    def late_ending(**options):
        return Ending(tokenizer, (), Sampling(max_time=2.5, **options), 9, "context", 12.5)

    checks = late_ending(stop="bc")
    assert checks.check(ord("a")) == ("a", None)
    assert checks.interruption() is None
    clock[0] = 12.5
    assert checks.interruption() == ("max_time", 2.5)
    assert checks.check(ord("b")) == ("b", Finish("length", "max_time", 2.5, 1, 2))
    assert late_ending(stop="a").check(ord("a"))[1].cause == "stop_string"


def test_text_held_back_before_min_new_tokens_does_not_count_later():
    """At the second token "ab" is too early, and held only since "abc" may come."""
    checks, _ = ending(stop=("ab", "abc"), min_new_tokens=3)
    assert [checks.check(token) for token in b"abx"] == [("", None), ("", None), ("abx", None)]


@pytest.mark.parametrize("least", range(6))
def test_byte_tokens_are_no_exception_from_min_new_tokens(least):
    tokenizer = small.byte_fallback()
    checks = Ending(tokenizer, (), Sampling(stop="ab", min_new_tokens=least), 100, "context")
    pieces = []
    for token in b"ababab":
        piece, finish = checks.check(token)
        pieces.append(piece)
        if finish:
            break
    expected = next(place for place in (1, 3, 5) if place + 1 >= least)
    assert "".join(pieces) == "ab" * (expected // 2)
    assert (finish.token_index, finish.character_index) == (expected, expected - 1)


def test_unsettled_text_may_come_back_as_other_text():
    strings = StopStrings(("bcd", "cx"))
    assert strings.push("ab") == "a"
    assert strings.push("", "c") == ""
    assert strings.push("c", "") == ""
    assert strings.push("", "d") == "" and strings.found == "bcd"
    strings = StopStrings(("bcd", "cx"))
    assert strings.push("", "bc") == ""
    assert strings.push("\ufffd\ufffdd") == "\ufffd\ufffdd"
    assert strings.push("c") == "" and strings.push("x") == "" and strings.begin == 3


@pytest.mark.parametrize("kind", [small.byte_fallback, small.byte_level_in_a_sequence])
def test_a_long_run_of_bytes_takes_linear_time(kind):
    """Four times the tokens take four times as long, not sixteen."""
    tokenizer, seconds = kind(), {}
    for n_tokens in (2000, 8000):
        runs = []
        for _ in range(3):
            checks = Ending(tokenizer, (), Sampling(stop="zz"), n_tokens, "context")
            started = time.perf_counter()
            for _ in range(n_tokens):
                checks.check(0xF0 if kind is small.byte_level_in_a_sequence else ord("a"))
            runs.append(time.perf_counter() - started)
        seconds[n_tokens] = min(runs)
    assert seconds[8000] < 9 * seconds[2000]


def n_alike_at_start(a: str, b: str) -> int:
    return next(
        (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )


def by_brute_force(tokenizer, ids, stops, least) -> tuple[str, int, str | None]:
    """Text, number of tokens and stop string, from the whole text after each token.

    A stop string counts where no earlier text had all of it.
    """
    earlier = [""]
    for n in range(1, len(ids) + 1):
        text = tokenizer.decode(ids[:n])
        n_alike = max(n_alike_at_start(each, text) for each in earlier)
        ends = [
            (start, len(stop), stop)
            for stop in stops
            for start in range(len(text))
            if text.startswith(stop, start) and start + len(stop) > n_alike
        ]
        if ends and n >= least:
            start, _, stop = min(ends)
            return text[:start], n, stop
        earlier.append(text)
    return tokenizer.decode(ids), len(ids), None


def test_random_tokens_and_stops_against_brute_force():
    """RILLM_STOP_SEQUENCES=1000000 is the long run."""
    draw = random.Random(7)
    tokenizers = [small.byte_level(["ab", "b\n", "é"]), small.byte_fallback(), small.metaspace()]
    alphabets = [
        [*"abé\n🦙".encode(), 256, 257, 258, 259, 260, 261, 999],
        [*range(0x61, 0x63), *"é🦙\n".encode(), *range(256, 268)],
        [*range(13)],
    ]
    characters = ["ab\né🦙", "ab\né🦙 Hs", " Heloworda"]
    for _ in range(int(os.environ.get("RILLM_STOP_SEQUENCES", 4000))):
        kind = draw.randrange(3)
        tokenizer = tokenizers[kind]
        ids = draw.choices(alphabets[kind], k=draw.randrange(1, 14))
        stops = tuple(
            {"".join(draw.choices(characters[kind], k=draw.randint(1, 4))) for _ in range(3)}
        )
        least = draw.choice([0, 0, draw.randint(1, len(ids))])
        options = Sampling(stop=stops, min_new_tokens=least)
        checks = Ending(tokenizer, (), options, len(ids), "max_new_tokens")
        pieces = []
        for token in ids:
            text, finish = checks.check(token)
            pieces.append(text)
            if finish:
                break
        text, n_tokens, stop = by_brute_force(tokenizer, ids, stops, least)
        assert ("".join(pieces), finish.token_index + 1) == (text, n_tokens), (ids, stops, pieces)
        assert finish.detail == (len(ids) if stop is None else stop)
        assert finish.character_index == len(text)
