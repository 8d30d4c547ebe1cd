"""The options of a generation: names, ranges, defaults of the model."""

import dataclasses

import numpy as np
import pytest

from rillm.decoding.adjust import adjustments
from rillm.decoding.order import steps
from rillm.decoding.sampling import Sampling


def test_the_defaults_are_greedy_and_without_limit():
    options = Sampling()
    assert steps(options) == [("temperature", 0.0)]
    assert adjustments(options, 5, None, (3,)) == []
    assert steps(Sampling(temperature=1.0)) == []
    assert (options.max_new_tokens, options.max_time, options.seed, options.n) == (None,) * 3 + (1,)
    assert (options.stop, options.stop_token_ids, options.ignore_eos) == ((), (), False)


@pytest.mark.parametrize(
    ("option", "value", "span"),
    [
        ("temperature", -1, "0 or more"),
        ("temperature", float("nan"), "0 or more"),
        ("temperature", float("inf"), "finite"),
        ("temperature", 10**400, "finite"),
        ("top_p", 1.01, "from 0 to 1"),
        ("top_p", -0.1, "from 0 to 1"),
        ("top_p", float("nan"), "from 0 to 1"),
        ("top_k", -2, "-1 or more"),
        ("max_new_tokens", -1, "0 or more"),
        ("seed", -1, "from 0 to 18446744073709551615"),
        ("seed", 2**64, "from 0 to 18446744073709551615"),
        ("stop_token_ids", [-1], "0 or more"),
        ("stop", "", "empty string"),
        ("stop", ["a", ""], "empty string"),
        ("min_new_tokens", -1, "0 or more"),
        ("max_time", -0.5, "0 or more"),
        ("min_p", 1.5, "from 0 to 1"),
        ("typical_p", -0.1, "from 0 to 1"),
        ("epsilon_cutoff", 2, "from 0 to 1"),
        ("eta_cutoff", -1, "from 0 to 1"),
        ("top_n_sigma", -0.5, "0 or more"),
        ("xtc_probability", 1.1, "from 0 to 1"),
        ("xtc_threshold", -0.1, "from 0 to 1"),
        ("mirostat_mode", 1, "0 or 2"),
        ("mirostat_tau", -1, "0 or more"),
        ("mirostat_eta", float("inf"), "0 or more"),
        ("dynatemp_range", -1, "0 or more"),
        ("dynatemp_exponent", -1, "0 or more"),
        ("min_keep", 0, "from 1 to 2147483647"),
        ("repetition_penalty", 0, "from 1e-06 to 1e\\+06"),
        ("repetition_penalty", 1e39, "from 1e-06 to 1e\\+06"),
        ("repeat_last_n", -2, "-1 or more"),
        ("presence_penalty", 2.5, "from -2 to 2"),
        ("frequency_penalty", -2.5, "from -2 to 2"),
        ("dry_multiplier", -1, "0 or more"),
        ("dry_base", 0.5, "1 or more"),
        ("dry_allowed_length", 0, "1 or more"),
        ("dry_sequence_breakers", [""], "empty string"),
        ("no_repeat_ngram_size", -1, "0 or more"),
        ("logit_bias", {-1: 0.5}, "0 or more"),
        ("logit_bias", {1: float("inf")}, "from -1e\\+30 to 1e\\+30"),
        ("logit_bias", {1: float("nan")}, "from -1e\\+30 to 1e\\+30"),
        ("logit_bias", {1: 1e39}, "from -1e\\+30 to 1e\\+30"),  # infinite in float32
        ("bad_words", [[]], "empty sequence"),
        ("bad_words", [""], "empty string"),
        ("allowed_token_ids", [-1], "0 or more"),
        ("allowed_token_ids", [], "one token id or more"),
        ("n", 0, "from 1 to 4294967295"),
        ("logprobs", -1, "0 or more"),
        ("prompt_logprobs", -1, "0 or more"),
        ("sampler_order", "vllm", "hf, llama.cpp, mlx"),
    ],
)
def test_ggml_org_ggml_37(option, value, span):
    """P4: a value out of its range is an error that names the option and says the range."""
    with pytest.raises(ValueError, match=f"{option} .*{span}"):
        Sampling(**{option: value})


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("temperature", "hot"),
        ("temperature", True),
        ("temperature", [1]),
        ("top_k", 1.5),
        ("mirostat_mode", 2.0),
        ("mirostat_mode", np.array([0, 2])),
        ("top_n_sigma", "wide"),
        ("logit_bias", {"five": 1}),
        ("top_k", True),
        ("max_new_tokens", "many"),
        ("seed", 1.0),
        ("stop", 5),
        ("stop", [5]),
        ("stop_token_ids", "a"),
        ("ignore_eos", "yes"),
        ("logit_bias", 5),
        ("bad_words", [1.5]),
        ("logits_processors", [5]),
        ("logits_processors", 5),
        ("sampler_order", 5),
        ("min_keep", 1.5),
    ],
)
def test_a_wrong_type_is_named(option, value):
    with pytest.raises(TypeError, match=option):
        Sampling(**{option: value})


def test_opennmt_ctranslate2_586():
    """P5: top_k 0 and -1 are off, and no size is too large."""
    assert Sampling(top_k=-1).top_k == 0
    assert Sampling(top_k=0).top_k == 0
    assert Sampling(top_k=9_999_999).top_k == 9_999_999


def test_values_are_brought_to_one_form():
    options = Sampling(
        stop="END",
        stop_token_ids=np.array([3, 4]),
        temperature=np.float32(0.5),
        top_k=np.int64(40),
        top_p=1,
        seed=np.uint64(2**63),
    )
    assert options.stop == ("END",)
    assert options.stop_token_ids == (3, 4)
    assert Sampling(stop_token_ids=7).stop_token_ids == (7,)
    for name, kind in (("temperature", float), ("top_k", int), ("top_p", float), ("seed", int)):
        assert type(getattr(options, name)) is kind


def test_options_do_not_change():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Sampling().temperature = 1.0


def test_an_unknown_option_is_named_with_the_known_ones():
    with pytest.raises(TypeError, match=r"'temprature'.*temperature, dynatemp_range") as caught:
        Sampling.from_options({}, {"temprature": 1.0})
    assert "max_new_tokens" in str(caught.value)


def test_a_minimum_beyond_the_maximum_contradicts_it():
    with pytest.raises(ValueError, match="min_new_tokens is 5: expected at most max_new_tokens, 4"):
        Sampling(min_new_tokens=5, max_new_tokens=4)


def test_json_writes_the_keys_of_a_mapping_as_strings():
    assert Sampling(logit_bias={"5": -1, "12": 2.5}).logit_bias == ((5, -1.0), (12, 2.5))


def test_options_can_be_made_from_options():
    options = Sampling(
        logit_bias={3: -1.5, 4: float("-inf")},
        bad_words=["a", 5, [6, 7]],
        top_n_sigma=-1,
        sampler_order=["top_k", "temperature"],
        logits_processors=len,
    )
    assert options.logit_bias == ((3, -1.5), (4, float("-inf")))
    assert options.bad_words == ("a", (5,), (6, 7))
    assert options.top_n_sigma == 0.0
    assert options.logits_processors == (len,)
    assert dataclasses.replace(options) == options
    hash(options)


def test_max_tokens_is_max_new_tokens():
    assert Sampling.from_options({}, {"max_tokens": 5}).max_new_tokens == 5
    assert Sampling.from_options({}, {"min_tokens": 2}).min_new_tokens == 2
    with pytest.raises(TypeError, match=r"max_tokens.*same option"):
        Sampling.from_options({}, {"max_new_tokens": 4, "max_tokens": 5})


def test_the_model_s_defaults_count_when_it_says_do_sample():
    file = {"do_sample": True, "temperature": 0.6, "top_p": 0.9, "max_length": 20}
    assert Sampling.from_options(file, {}) == Sampling(temperature=0.6, top_p=0.9)
    assert Sampling.from_options(file, {"temperature": 0}) == Sampling(temperature=0, top_p=0.9)
    assert Sampling.from_options({"do_sample": True}, {}) == Sampling(temperature=1.0)
    assert Sampling.from_options({"do_sample": True, "top_k": None}, {}).top_k == 0


def test_without_do_sample_the_model_is_greedy():
    """As transformers: a temperature in the file alone does not switch sampling on."""
    for file in ({}, {"temperature": 0.6}, {"do_sample": False, "temperature": 0.6, "top_k": 5}):
        assert Sampling.from_options(file, {}) == Sampling()


def test_penalties_of_the_file_always_count():
    """As in transformers, where they are no matter of sampling."""
    file = {"repetition_penalty": 1.1, "no_repeat_ngram_size": 3, "min_p": 0.1}
    expected = Sampling(repetition_penalty=1.1, no_repeat_ngram_size=3)
    assert Sampling.from_options(file, {}) == expected
    assert Sampling.from_options(file, {"repetition_penalty": 1.0}).repetition_penalty == 1.0


def test_an_order_of_one_s_own_leaves_out_the_file_s_filters():
    file = {"do_sample": True, "temperature": 0.6, "top_p": 0.9, "top_k": 20}
    chosen = Sampling.from_options(file, {"sampler_order": ("top_k",)})
    assert chosen == Sampling(temperature=1.0, top_k=20, sampler_order=("top_k",))
    with pytest.raises(ValueError, match="leaves out top_p"):
        Sampling.from_options({}, {"temperature": 1, "top_p": 0.9, "sampler_order": ()})


def test_none_counts_as_not_given():
    file = {"do_sample": True, "temperature": 0.6}
    options = {"temperature": None, "seed": None, "max_tokens": None, "max_new_tokens": 3}
    assert Sampling.from_options(file, options) == Sampling(temperature=0.6, max_new_tokens=3)
