"""Reuse: what is known of a prompt is not computed again, and nothing shows it but the time."""

import threading

import numpy as np
import pytest

import rillm
import small_tokenizers as small

PAGE = 256


def text(n, seed=0):
    return np.random.default_rng(seed).integers(3, 97, n).tolist()


@pytest.fixture(params=["base", "gemma3_text"])
def model(tiny_folder, request):
    with rillm.Model.from_pretrained(tiny_folder(request.param), context=4096, threads=1) as model:
        model._checkpoint.tokenizer = small.byte_level()
        yield model


def cold(model, ids):
    prefixes, model.prefixes = model.prefixes, None
    with model.session() as session:
        logits = session.prefill(ids)
    model.prefixes = prefixes
    return logits


def n_common(a, b):
    return next(
        (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )


def reused(session, ids):
    """How many of ids were not computed, and the logits after all of them."""
    n = session.reuse(ids)
    assert session.tokens == ids[:n] and n < len(ids)
    return n, session.prefill(ids[n:])


@pytest.mark.parametrize("length", [2, 255, 256, 257, 700, 2000])
def test_waybarrios_vllm_mlx_311_same_shorter_longer_and_other_prompts(model, length):
    """One session, prompt after prompt: the common beginning stays, at least one is evaluated."""
    ids = text(length)
    half = ids[: length // 2 + 1]
    prompts = [ids, ids, ids[:-1], half, [*ids, *text(5, 2)], [*half, *text(30, 1)], ids]
    with model.session() as session:
        before = []
        for prompt in prompts:
            n, logits = reused(session, prompt)
            assert np.array_equal(logits, cold(model, prompt))
            common = n_common(before, prompt)
            assert n in (min(common, len(prompt) - 1), 0)
            if length - common < 500:  # a ring can go back at least so far
                assert n == min(common, len(prompt) - 1)
            before = prompt


@pytest.mark.parametrize("length", [2, 255, 256, 257, 700, 2000])
def test_a_new_session_finds_what_others_computed(model, length):
    prefixes = model.prefix_cache(1 << 28)
    ids = text(length)
    expected, half = cold(model, ids), ids[: length // 2 + 1]
    with model.session() as session:
        assert np.array_equal(session.prefill(ids), expected)
    for prompt in (ids, ids[:-1], half, [*ids, 5, 6], [*half, 1, 2]):
        with model.session() as session:
            n, logits = reused(session, prompt)
            assert n == min(n_common(ids, prompt), len(prompt) - 1)
            assert np.array_equal(logits, cold(model, prompt))
            assert np.array_equal(session.step(7), cold(model, [*prompt, 7]))
    assert prefixes.n_hits == 5 if length > 2 else prefixes.n_hits >= 1


def test_pages_are_found_while_their_session_goes_on(model):
    """Full pages are handed over at once; a sliding layer's, before they leave its window."""
    model.prefix_cache(1 << 28)
    ids = text(3000)
    with model.session() as first:
        first.prefill(ids)
        for n in (300, 1000, 2999):
            with model.session() as second:
                assert second.reuse(ids[:n]) == (n - 1 if n < 2816 else 2816)
                assert np.array_equal(
                    second.prefill(ids[second.position : n]), cold(model, ids[:n])
                )
        assert np.array_equal(first.step(5), cold(model, [*ids, 5]))


def test_random_conversations(model):
    """Branching texts under a small limit, in sessions that live side by side."""
    prefixes = model.prefix_cache(6 * PAGE * model.info()["kv_bytes_per_position"])
    rng = np.random.default_rng(3)
    known = [text(900, seed) for seed in range(3)]
    for _ in range(60):
        base = known[int(rng.integers(len(known)))]
        kept, more, seed = (int(rng.integers(1, most)) for most in (len(base), 400, 99))
        prompt = base[:kept] + text(more, seed)
        known[int(rng.integers(len(known)))] = prompt
        with model.session() as session:
            _, logits = reused(session, prompt)
            assert np.array_equal(logits, cold(model, prompt))
        assert prefixes.n_bytes <= prefixes.n_bytes_at_most
    assert prefixes.n_hits > 10
    prefixes.clear()
    assert prefixes.n_bytes == 0
    with model.session() as session:
        assert session.reuse(prompt) == 0


def test_the_least_recently_used_goes_first(model):
    pages = 2 * model.info()["kv_bytes_per_position"] * PAGE
    prefixes = model.prefix_cache(pages)
    a, b, c = (text(PAGE + 1, seed) for seed in range(3))

    def known(ids):
        with model.session() as session:
            n = session.reuse(ids)
            session._n_stored = len(ids)  # only asks
            return n

    for ids in (a, b):
        with model.session() as session:
            session.prefill(ids[:PAGE])
    assert (known(a), known(b), known(a)) == (PAGE, PAGE, PAGE)
    with model.session() as session:
        session.prefill(c[:PAGE])
    assert (known(a), known(b), known(c)) == (PAGE, 0, PAGE)
    assert prefixes.n_bytes == pages


def test_generate_uses_it_and_says_the_same(model):
    ids = text(600)
    options = {"max_new_tokens": 20, "temperature": 1.0, "seed": 4, "ignore_eos": True}
    expected = model.generate(ids, **options)
    prefixes = model.prefix_cache()
    for _ in range(2):
        got = model.generate(ids, **options)
        assert (got.token_ids, got.text) == (expected.token_ids, expected.text)
    assert prefixes.n_tokens_found == 599
    timings = got.timings
    assert (timings.n_prompt, timings.n_reused) == (600, 599)
    assert timings.prefill_tokens_per_second == 1 / timings.prefill_seconds
    with_logprobs = model.generate(ids, prompt_logprobs=0, **options)
    assert with_logprobs.token_ids == expected.token_ids
    model.prefix_cache(bytes=0)
    assert model.prefixes is None
    with pytest.raises(ValueError, match="bytes is -1"):
        model.prefix_cache(bytes=-1)


def test_a_prompt_without_a_text_warms_it(model):
    ids = text(600)
    model.prefix_cache()
    assert model.generate(ids, max_new_tokens=0).timings.n_reused == 0
    assert model.generate(ids, max_new_tokens=0).timings.n_reused == 599


def test_cache_prompt_takes_the_prompt_for_the_whole_text(model):
    options = {"max_new_tokens": 5, "ignore_eos": True}
    first = text(40)
    with model.session() as session:
        said = model.generate(first, session=session, cache_prompt=True, **options).token_ids
        second = [*first, *said, *text(10, 1)]
        done = []
        got = model.generate(
            second,
            session=session,
            cache_prompt=True,
            on_prefill=lambda *n: done.append(n),
            **options,
        )
        assert session.tokens[: len(second)] == second
        assert done == [(11, 11)]  # ten, and the one that was said last
        assert got.token_ids == model.generate(second, **options).token_ids
        with pytest.raises(ValueError, match="prompt_logprobs"):
            model.generate(second, session=session, cache_prompt=True, prompt_logprobs=1)


def test_many_threads_share_one_tree(model):
    model.prefix_cache(8 * PAGE * model.info()["kv_bytes_per_position"])
    base = text(700)
    prompts = [base[: 100 * i] + text(50, i) for i in range(1, 8)]
    expected = [cold(model, prompt) for prompt in prompts]
    wrong = []

    def work(start):
        for i in range(20):
            at = (start + i) % len(prompts)
            with model.session() as session:
                _, logits = reused(session, prompts[at])
                if not np.array_equal(logits, expected[at]):
                    wrong.append(at)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_turns_that_depend_on_the_length_are_kept_apart(tiny_folder):
    """A longer text turns all its keys anew: what a shorter one computed is not its own."""
    with rillm.Model.from_pretrained(tiny_folder("phi3_longrope")) as model:
        original = model._config.ropes[0].original_context
        ids = text(model.context_length)
        model.prefix_cache()
        for n in (original - 1, original + 60, original - 1, original + 60):
            with model.session() as session:
                _, logits = reused(session, ids[:n])
                assert np.array_equal(logits, cold(model, ids[:n])), n


def test_sessions_that_live_long_reuse_and_rewind(model):
    """Pages that a session had begun itself are not taken for those it was handed."""
    prefixes = model.prefix_cache(20 * PAGE * model.info()["kv_bytes_per_position"])
    rng = np.random.default_rng(1)
    known = [text(700, seed) for seed in range(3)]
    sessions = [model.session() for _ in range(4)]
    for turn in range(120):
        session = sessions[int(rng.integers(4))]
        move = rng.choice(["reuse", "reuse", "grow", "rewind", "clear"])
        if move == "reuse":
            base = known[int(rng.integers(3))]
            prompt = base[: int(rng.integers(1, 700))] + text(int(rng.integers(1, 40)), turn)
            _, logits = reused(session, prompt)
            assert np.array_equal(logits, cold(model, prompt)), turn
        elif move == "grow":
            session.prefill(known[int(rng.integers(3))][: int(rng.integers(1, 300))])
        elif move == "rewind":
            session.rewind(int(rng.integers(session.earliest, session.position + 1)))
        elif turn % 3 == 0:
            prefixes.clear()
        tokens = session.tokens
        assert np.array_equal(session.step(7), cold(model, [*tokens, 7])), turn
        session.rewind(len(tokens))


def test_the_last_page_is_handed_over_where_a_step_crossed_into_it(model):
    model.prefix_cache()
    ids = text(300)
    with model.session() as session:
        session.prefill(ids, chunk=300)
    with model.session() as session:
        assert session.reuse(ids) == 299


def test_a_bad_option_forgets_nothing(model):
    with model.session() as session:
        session.prefill(text(50))
        for options in ({"logit_bias": {10**6: 1.0}}, {"prompt_logprobs": 1}):
            with pytest.raises(ValueError):
                model.stream(text(20), session=session, cache_prompt=True, **options)
        assert session.tokens == text(50)


def test_a_stream_whose_session_was_used_before_its_first_piece_says_so(model):
    with model.session() as session:
        pieces = model.stream(text(20), session=session, max_new_tokens=3)
        session.prefill(text(20, 1))
        with pytest.raises(rillm.errors.SessionBusy, match="since this stream was made"):
            next(pieces)
