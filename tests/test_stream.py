"""A generation as its caller meets it: cancelled, in a thread, of several prompts, laid open."""

import asyncio
import json
import math
import threading
import time

import numpy as np
import pytest

import rillm
import small_tokenizers as small
from rillm.decoding.astream import in_threads
from rillm.decoding.loop import collect, stream
from rillm.decoding.sampling import Sampling
from rillm.decoding.stopping import Finish
from rillm.decoding.timings import Timings
from rillm.decoding.turn_end import turn_end
from weights import load_case

TOKENIZER = small.byte_level()
EOS = TOKENIZER.id("<eos>")
SAMPLED = {"temperature": 1.5, "seed": 3, "max_new_tokens": 12}


def start(script, prompt=(1, 2, 3), context=1000, session=None, **options):
    session = session or small.ScriptedSession(list(script), context=context)
    hooks = {name: options.pop(name) for name in ("on_prefill", "on_step") if name in options}
    return session, stream(session, TOKENIZER, (EOS,), prompt, Sampling(**options), **hooks)


@pytest.fixture(scope="module")
def tiny(tiny_folder):
    with rillm.Model.from_pretrained(tiny_folder("base"), weights="f32") as model:
        model._checkpoint.tokenizer = small.byte_level()  # ids of the recorded model are bytes
        yield model


def test_cancel_ends_with_a_piece_that_says_so():
    session, pieces = start([*b"abcdef"], stop="bcx")
    assert [next(pieces).text for _ in range(3)] == ["a", "", ""]
    pieces.cancel()
    last = next(pieces)
    assert (last.text, last.token_ids) == ("bc", ())
    assert last.finish == Finish("cancelled", "cancelled", None, 2, 3)
    assert last.timings.n_generated == 3
    assert list(pieces) == []
    assert session.tokens[3:] == [*b"abc"]


def test_cancel_before_the_start_evaluates_nothing():
    session, pieces = start([*b"abc"])
    pieces.cancel()
    result = collect(pieces)
    assert (result.text, result.token_ids, result.finish_reason) == ("", [], "cancelled")
    assert session.calls == []


class SlowSession(small.ScriptedSession):
    """A millisecond a token of the prompt."""

    def prefill(self, ids, chunk=None):
        time.sleep(len(ids) / 1000)
        return super().prefill(ids)


def test_ggml_org_llama_cpp_24496():
    """V1: a prompt of ten seconds is left within half a second, from another thread."""
    session, pieces = start([], prompt=[1] * 10_000, session=SlowSession([1], context=20_000))
    timer = threading.Timer(0.3, pieces.cancel)
    timer.start()
    started = time.perf_counter()
    result = collect(pieces)
    assert 0.25 < time.perf_counter() - started < 0.3 + 0.5
    assert result.finish == Finish("cancelled", "cancelled", None, -1, 0)
    assert 0 < session.position < 10_000


def test_closing_from_another_thread_ends_it_too():
    session, pieces = start([], prompt=[1] * 10_000, session=SlowSession([1], context=20_000))
    results = []
    thread = threading.Thread(target=lambda: results.append(collect(pieces)))
    thread.start()
    while not session.position:
        time.sleep(0.01)
    pieces.close()
    thread.join(timeout=0.5)
    assert not thread.is_alive()
    assert results[0].finish_reason == "cancelled"


def test_max_time_ends_a_prompt_and_a_text():
    _, pieces = start([], prompt=[1] * 10_000, session=SlowSession([1], 20, 20_000), max_time=0.1)
    assert collect(pieces).finish == Finish("length", "max_time", 0.1, -1, 0)

    def wait(ids, logits):
        time.sleep(0.03)

    _, pieces = start([ord("a")], max_time=0.1, logits_processors=wait)
    result = collect(pieces)
    assert result.finish.cause == "max_time" and 1 <= len(result.token_ids) <= 4
    assert result.finish.token_index == len(result.token_ids) - 1


def test_progress_of_the_prompt():
    calls = []
    _, pieces = start([EOS], prompt=[1] * 900, on_prefill=lambda *done: calls.append(done))
    collect(pieces)
    assert calls[0] == (16, 900) and calls[-1] == (900, 900)
    assert [done for done, _ in calls] == sorted({done for done, _ in calls})


def test_completions_share_the_prompt_and_differ(tiny):
    """Each is what its own noise gives; the first is the run without n."""
    session = tiny.session()
    pieces = list(tiny.stream([1, 2, 3], session=session, n=3, **SAMPLED))
    assert [piece.completion for piece in pieces] == [0] * 12 + [1] * 12 + [2] * 12
    results = tiny.generate([1, 2, 3], n=3, **SAMPLED)
    assert [r.token_ids for r in results] == [
        [id for piece in pieces if piece.completion == n for id in piece.token_ids]
        for n in range(3)
    ]
    assert len({tuple(result.token_ids) for result in results}) == 3
    assert results[0].token_ids == tiny.generate([1, 2, 3], **SAMPLED).token_ids
    assert {result.seed for result in results} == {3}
    assert session.tokens == [1, 2, 3, *results[2].token_ids[:-1]]


def test_the_prompt_is_evaluated_once_for_all_completions():
    session, pieces = start([*b"ab", EOS], prompt=[1] * 40, n=3)
    assert [piece.text for piece in pieces] == ["a", "b", ""] * 3
    assert session.calls == [16, 24, *[1, 1] * 3]


def test_a_list_of_prompts_gives_what_each_gives_alone(tiny):
    prompts = [[1, 2, 3], [9], [1, 2, 3, 4, 5]]
    together = tiny.generate(prompts, **SAMPLED)
    alone = [tiny.generate(prompt, **SAMPLED) for prompt in prompts]
    assert [r.token_ids for r in together] == [r.token_ids for r in alone]
    assert [r.text for r in together] == [r.text for r in alone]
    texts = tiny.generate(["AB", "C"], max_new_tokens=3)
    assert [r.text for r in texts] == [tiny.generate(t, max_new_tokens=3).text for t in ("AB", "C")]


def test_wrong_options_are_refused_before_any_work(tiny):
    session = tiny.session()
    for options, error in (({"temprature": 1}, TypeError), ({"allowed_token_ids": 97}, ValueError)):
        for call in (tiny.stream, tiny.astream, tiny.generate):
            with pytest.raises(error):
                call([1], **options)
        with pytest.raises(error):
            tiny.stream([1], session=session, **options)
    with pytest.raises(TypeError):
        tiny.generate([[1], [2]], temprature=1)
    with pytest.raises(ValueError, match="one prompt"):
        tiny.generate([[1], [2]], session=session)
    assert session.position == 0


def test_async_pieces_are_those_of_the_stream(tiny):
    async def run():
        return [piece async for piece in tiny.astream([1, 2, 3], **SAMPLED)]

    pieces = asyncio.run(run())
    assert [p.token_ids for p in pieces] == [p.token_ids for p in tiny.stream([1, 2, 3], **SAMPLED)]


def test_async_streams_of_one_model_run_side_by_side(tiny):
    async def run(seed):
        options = SAMPLED | {"seed": seed}
        return [piece.token_ids async for piece in tiny.astream([1, 2, 3], **options)]

    async def all_of_them():
        return await asyncio.gather(*map(run, range(5)))

    expected = [tiny.generate([1, 2, 3], **SAMPLED | {"seed": seed}) for seed in range(5)]
    together = asyncio.run(all_of_them())
    assert [[id for ids in each for id in ids] for each in together] == [
        result.token_ids for result in expected
    ]


def test_a_cancelled_task_leaves_the_session_free():
    """Inside a long prompt: within half a second, and then nothing computes on the session."""
    session = SlowSession([*b"ab", EOS], context=20_000)
    pieces = stream(session, TOKENIZER, (EOS,), [1] * 10_000, Sampling())

    async def run():
        task = asyncio.ensure_future(anext(in_threads(pieces)))
        await asyncio.sleep(0.2)
        cancelled = time.perf_counter()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert time.perf_counter() - cancelled < 0.5
        position = session.position
        assert 0 < position < 10_000
        await asyncio.sleep(0.4)
        assert session.position == position

    asyncio.run(run())


def test_cancelled_twice_it_still_waits_until_the_session_is_free():
    computing = threading.Event()

    class Session(small.ScriptedSession):
        def prefill(self, ids, chunk=None):
            computing.set()
            time.sleep(0.3)
            computing.clear()
            return super().prefill(ids)

    pieces = stream(Session([1]), TOKENIZER, (EOS,), [1], Sampling())

    async def run():
        task = asyncio.ensure_future(anext(in_threads(pieces)))
        while not computing.is_set():
            await asyncio.sleep(0.01)
        for _ in range(3):
            task.cancel()
            await asyncio.sleep(0.02)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not computing.is_set()

    asyncio.run(run())
    assert list(pieces) == []  # closed


def test_an_error_in_an_async_stream_is_the_caller_s(tiny):
    def fail(logits):
        raise ZeroDivisionError

    async def run():
        return [piece async for piece in tiny.astream([1], logits_processors=fail)]

    with pytest.raises(ZeroDivisionError):
        asyncio.run(run())


def test_prompts_of_any_kind(tiny):
    """Iterators, arrays and rows of arrays; text beside ids."""
    options = {"max_new_tokens": 3}
    one, two = (tiny.generate(ids, **options).token_ids for ids in ([1, 2], [3, 4]))
    assert tiny.generate(iter([1, 2]), **options).token_ids == one
    assert tiny.generate(np.array([1, 2], np.uint8), **options).token_ids == one
    for prompts in (np.array([[1, 2], [3, 4]]), iter([[1, 2], [3, 4]]), ["\x01\x02", (3, 4)]):
        assert [r.token_ids for r in tiny.generate(prompts, **options)] == [one, two]
    with pytest.raises(ValueError, match="no tokens"):
        tiny.generate([], **options)


@pytest.mark.parametrize(
    "prompt",
    [b"AB", bytearray(b"AB"), {5, 6}, {"a": 1}, {1: 2}, [True, False], [1, True], 5, None, [1.5]],
)
@pytest.mark.parametrize("ask", ["generate", "stream", "astream"])
def test_what_is_no_prompt_is_refused_in_words(tiny, ask, prompt):
    for each in (prompt, [[1, 2], prompt]) if ask == "generate" else (prompt,):
        with pytest.raises(TypeError, match="expected text or "):
            getattr(tiny, ask)(each, max_new_tokens=1)


def test_leaving_an_async_stream_cancels_it(tiny):
    session = tiny.session(context=100_000)

    async def run():
        pieces = tiny.astream([1, 2], session=session, ignore_eos=True)
        async for piece in pieces:
            if piece.index == 4:
                break
        await pieces.aclose()

    started = time.perf_counter()
    asyncio.run(run())
    assert time.perf_counter() - started < 5
    assert session.position == 2 + 4


def test_logprobs_are_the_model_s_own(tiny):
    """log softmax of each step's logits, whatever the temperature and the penalties."""
    result = tiny.generate([1, 2, 3], logprobs=4, repetition_penalty=1.3, **SAMPLED)
    with tiny.session() as session:
        logits = session.prefill([1, 2, 3]).astype(np.float64)
        for token, record in zip(result.token_ids, result.logprobs, strict=True):
            law = logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())
            order = np.argsort(-law, kind="stable")[:4]
            assert (record.token, len(record.top)) == (token, 4)
            assert record.logprob == pytest.approx(law[token], abs=1e-6)
            assert [token for token, _ in record.top] == order.tolist()
            assert [p for _, p in record.top] == pytest.approx(law[order], abs=1e-6)
            logits = session.step(token).astype(np.float64)


def test_no_logprobs_unless_asked_for(tiny):
    assert tiny.generate([1], max_new_tokens=2).logprobs is None
    only_its_own = tiny.generate([1], max_new_tokens=2, logprobs=0).logprobs
    assert [record.top for record in only_its_own] == [(), ()]


def test_prompt_logprobs_are_the_scores_of_the_prompt(tiny):
    ids = load_case("base")["tokens"][:70]
    with tiny.session() as session:
        scores = session.score(ids)
    for n_new in (0, 2):
        result = tiny.generate(ids, prompt_logprobs=2, max_new_tokens=n_new)
        assert result.prompt_logprobs[0] is None
        assert [record.token for record in result.prompt_logprobs[1:]] == ids[1:]
        values = [record.logprob for record in result.prompt_logprobs[1:]]
        assert values == pytest.approx(scores[1:].tolist(), abs=1e-6)
        assert {len(record.top) for record in result.prompt_logprobs[1:]} == {2}
        assert result.token_ids == tiny.generate(ids, max_new_tokens=n_new).token_ids


def test_prompt_logprobs_go_on_from_what_the_session_holds(tiny):
    ids = load_case("base")["tokens"][:70]
    with tiny.session() as session:
        scores = session.score(ids)
        for n in (40, 1):  # logits that the rewind dropped, and logits that are there
            session.rewind(n)
            for _ in range(2):
                options = {"prompt_logprobs": 0, "max_new_tokens": 0, "session": session}
                records = tiny.generate(ids[n : n + 9], **options).prompt_logprobs
                values = [record.logprob for record in records]
                assert values == pytest.approx(scores[n : n + 9].tolist(), abs=1e-6)
                n += 9


@pytest.mark.parametrize("context", [None, 5])
def test_a_prompt_without_a_text_warms_a_session(tiny, context):
    """With no token asked for, or no room for one."""
    ids = [1, 2, 3, 4, 5]
    with tiny.session(context) as session:
        n_new = 0 if context is None else None
        result = tiny.generate(ids, session=session, max_new_tokens=n_new)
        assert (result.token_ids, session.tokens) == ([], ids)
        assert result.timings.prefill_tokens_per_second > 0


def test_a_session_continues_with_its_noise_and_its_surprise_limit(tiny):
    """Cut off, continued, and rewound and repeated: the tokens of one run."""
    options = {"temperature": 1.0, "seed": 4, "mirostat_mode": 2, "mirostat_tau": 3.0}
    whole = tiny.generate([1, 2, 3], max_new_tokens=30, **options).token_ids
    plain = tiny.generate([1, 2, 3], max_new_tokens=30, temperature=1.0, seed=4).token_ids
    assert whole != plain
    with tiny.session() as session:

        def run(prompt, n):
            pieces = tiny.stream(prompt, session=session, max_new_tokens=n, **options)
            return collect(pieces).token_ids

        assert run([1, 2, 3], 12) == whole[:12]
        assert run(whole[11:12], 18) == whole[12:]
        session.rewind(3 + 11)
        assert run(whole[11:12], 18) == whole[12:]
        session.rewind(3 + 11)
        other = run([whole[11] - 1], 1)
        limits = session.surprise_limits
        assert limits[16][0] == other[0] and limits[15][0] == whole[11], (
            "the state of another token"
        )
        session.rewind(0)
        assert limits is not session.surprise_limits and not session.surprise_limits
        assert run([1, 2, 3], 30) == whole


def test_the_last_piece_has_the_timings(tiny):
    pieces = list(tiny.stream([1, 2, 3], **SAMPLED))
    assert [piece.timings for piece in pieces[:-1]] == [None] * 11
    timings = pieces[-1].timings
    assert (timings.n_prompt, timings.n_generated, len(timings.steps)) == (3, 12, 11)
    assert timings.load_seconds > 0
    assert timings.decode_seconds == pytest.approx(sum(timings.steps))
    assert timings.gigabytes_per_second == pytest.approx(
        tiny.info()["bytes_per_token"] * 11 / timings.decode_seconds / 1e9
    )
    assert json.loads(json.dumps(timings.as_dict()))["inter_token_seconds"].keys() == {
        "p50",
        "p90",
        "p99",
    }
    assert not any(piece.from_draft for piece in pieces)


def test_nothing_is_printed(tiny, capfd):
    tiny.generate([1, 2, 3], n=2, logprobs=3, prompt_logprobs=1, **SAMPLED)
    with pytest.raises(rillm.errors.BadLogits):
        tiny.generate([1, 2], logits_processors=lambda logits: logits * math.nan)
    assert capfd.readouterr() == ("", "")


def test_percentiles_are_the_nearest_ranks():
    steps = [float(i) for i in range(200, 0, -1)]
    assert Timings(steps=steps).inter_token_seconds == {"p50": 100.0, "p90": 180.0, "p99": 198.0}
    assert Timings(steps=[7.0]).inter_token_seconds == {"p50": 7.0, "p90": 7.0, "p99": 7.0}
    assert Timings().inter_token_seconds == {"p50": 0.0, "p90": 0.0, "p99": 0.0}


def test_a_step_laid_open():
    """The script says its token by a logit of 9 among 299 of 0."""
    seen = []
    options = {"temperature": 2.0, "top_k": 3, "seed": 5, "max_new_tokens": 2, "stop": "zz"}
    _, pieces = start([*b"ab"], on_step=seen.append, **options)
    pieces = list(pieces)
    assert [step.token for step in seen] == [piece.token_ids[0] for piece in pieces]
    first = seen[0]
    assert (first.index, first.position, first.n_kept) == (0, 3, 3)
    assert (first.before[0].token, first.before[0].text) == (ord("a"), "a")
    assert first.before[0].probability == pytest.approx(math.exp(9) / (math.exp(9) + 299))
    heat = math.exp(4.5)
    assert [c.probability for c in first.after] == pytest.approx(
        [heat / (heat + 2), 1 / (heat + 2), 1 / (heat + 2)], rel=1e-5
    )
    assert [c.token for c in first.after] == [ord("a"), 0, 1]
    assert first.probability == first.after[0].probability
    assert "largest (logit - max) / temperature + noise of 3" in first.why
    names = ["eos", "stop_string", "max_new_tokens", "context", "cancelled"]
    assert first.checks == tuple((name, False) for name in names)
    assert seen[1].checks == (("eos", False), ("stop_string", False), ("max_new_tokens", True))


def test_watching_changes_nothing(tiny):
    """Nor is a logits processor called more than once a token."""
    seen, n_calls = [], []
    options = SAMPLED | {"top_p": 0.9, "repetition_penalty": 1.2, "mirostat_mode": 2}
    options["logits_processors"] = lambda logits: n_calls.append(len(seen))
    watched = collect(tiny.stream([1, 2, 3], on_step=seen.append, **options))
    assert n_calls == list(range(12))
    assert watched.token_ids == tiny.generate([1, 2, 3], **options).token_ids
    assert [step.token for step in seen] == watched.token_ids
    assert all(step.token in [c.token for c in step.after] or step.n_kept > 8 for step in seen)


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{% for m in messages %}[{{ m.content }}]<eos>\n{% endfor %}", True),
        ("{% for m in messages %}[{{ m.content }}]\n{% endfor %}", False),
        ("{{ raise_exception('no') }}", False),
        (None, False),
    ],
)
def test_the_template_s_end_of_a_turn_ends_the_text(template, expected):
    """S9: a model's files may name another end token than its template writes."""
    template = template and template.replace("[", "").replace("]", "")
    assert turn_end(template, TOKENIZER) == ((EOS,) if expected else ())


def test_the_end_tokens_are_those_of_files_and_template(tiny_folder):
    """S9: an answer ends where the template ends one, though no file names that token."""
    tokenizer = small.wordpiece()
    end = tokenizer.id("<eos>")
    with rillm.Model.from_pretrained(tiny_folder("base"), weights="f32") as model:
        files = model._checkpoint.eos_token_ids
        model._checkpoint.tokenizer = tokenizer
        model.chat_template = "{% for m in messages %}{{ m.content }}<eos>{% endfor %}"
        assert end not in files and model.eos_token_ids == (*files, end)
        result = model.generate([1], logit_bias={end: 1e9}, max_new_tokens=5)
        assert result.finish == Finish("stop", "eos", end, 0, 0)
