"""What choosing a token asks of the C engine; a part of _engine.pyx."""


cdef NoiseKey noise_key(uint64_t seed, uint32_t index, uint32_t completion, uint32_t purpose) noexcept:
    cdef NoiseKey key
    key.seed, key.index, key.completion, key.purpose = seed, index, completion, purpose
    return key


cdef class Filters:
    """What narrows the choice of a token, in order: steps of (a name of SAMPLERS, its parameters ...).

    A method's result is a pure function of this and of its arguments. `surprise_limit`, in bits, is the parameter of
    a step "mirostat". BadLogits: NaN or +inf among the logits, or nothing finite. `isa` is what computes it, by default
    the portable one; the result is the same.
    """
    cdef SamplerStep[16] steps
    cdef int32_t n_steps, min_keep
    cdef const Kernels *kernels

    def __cinit__(self, steps, int32_t min_keep=1, isa=None):
        if len(steps) > 16 or min_keep < 1:
            raise ValueError(f"{len(steps)} steps, min_keep {min_keep}: expected at most 16, and 1 or more")
        self.n_steps, self.min_keep = <int32_t>len(steps), min_keep
        self.kernels = kernels_for(ISA_PORTABLE) if isa is None else kernels_named(isa)
        for i, (name, *parameters) in enumerate(steps):
            self.steps[i].kind = <SamplerKind><int>SAMPLERS.index(name)
            for j, parameter in enumerate(parameters):
                self.steps[i].parameters[<int>j % 3] = parameter

    cdef Sampler sampler(self, SamplerStep *steps, double surprise_limit) noexcept:
        cdef Sampler sampler
        sampler.steps, sampler.n_steps, sampler.min_keep, sampler.wants_surprise = steps, self.n_steps, self.min_keep, 0
        sampler.kernels = self.kernels
        for i in range(self.n_steps):
            steps[i] = self.steps[i]
            if steps[i].kind == SAMPLER_MIROSTAT:
                steps[i].parameters[0] = surprise_limit
                sampler.wants_surprise = 1
        return sampler

    def sample(self, const float[::1] logits, uint64_t seed, uint32_t index, uint32_t completion=0,
               double surprise_limit=0.0):
        """(token, its score, its surprise in bits if there is a step "mirostat"): the largest score is taken.

        The score is (logit − max) / temperature + Gumbel noise, a pure function of (seed, index, completion, token).
        """
        cdef NoiseKey key = noise_key(seed, index, completion, NOISE_GUMBEL)
        cdef SamplerStep[16] steps
        cdef Sampler sampler = self.sampler(steps, surprise_limit)
        cdef Choice choice
        cdef Status status
        choice.surprise = 0.0
        if logits.shape[0] == 0:
            raise ValueError("logits are empty")
        with nogil:
            status = sample_token(&logits[0], <int32_t>logits.shape[0], &sampler, &key, &choice)
        check(status)
        return choice.token, choice.score, choice.surprise

    def sample_many(self, const float[::1] logits, int32_t[::1] tokens, uint64_t seed, uint32_t first_index=0):
        """Fills tokens with what `sample` gives at first_index and the indices after it, without mirostat."""
        cdef NoiseKey key = noise_key(seed, first_index, 0, NOISE_GUMBEL)
        cdef SamplerStep[16] steps
        cdef Sampler sampler = self.sampler(steps, 0.0)
        cdef Status status
        if logits.shape[0] == 0 or tokens.shape[0] == 0:
            raise ValueError("logits or tokens are empty")
        with nogil:
            status = sample_many(&logits[0], <int32_t>logits.shape[0], &sampler, &key, &tokens[0],
                                 <int32_t>tokens.shape[0])
        check(status)

    def kept(self, const float[::1] logits, uint64_t seed=0, uint32_t index=0, uint32_t completion=0,
             double surprise_limit=0.0):
        """What the steps leave: ids int32 [n], ascending, and their probabilities float32 [n]."""
        cdef NoiseKey key = noise_key(seed, index, completion, NOISE_GUMBEL)
        cdef SamplerStep[16] steps
        cdef Sampler sampler = self.sampler(steps, surprise_limit)
        cdef int32_t n_kept = 0
        cdef int32_t[::1] tokens = np.empty(logits.shape[0], np.int32)
        cdef float[::1] probabilities = np.empty(logits.shape[0], np.float32)
        if logits.shape[0] == 0:
            raise ValueError("logits are empty")
        check(sample_kept(&logits[0], <int32_t>logits.shape[0], &sampler, &key, &tokens[0], &probabilities[0], &n_kept))
        return np.asarray(tokens)[:n_kept], np.asarray(probabilities)[:n_kept]


def rank(const float[::1] logits, int32_t n_best):
    """The n_best likeliest tokens, int32 [at most n_best], and log Σ exp(logit)."""
    cdef int32_t[::1] tokens = np.empty(max(n_best, 1), np.int32)
    cdef double log_total = 0.0
    if logits.shape[0] == 0:
        raise ValueError("logits are empty")
    check(rank_tokens(kernels_for(ISA_PORTABLE), &logits[0], <int32_t>logits.shape[0], &n_best, &tokens[0],
                      &log_total))
    return np.asarray(tokens)[:n_best], log_total


def repeats(const int32_t[::1] ids):
    """How many tokens the texts up to each token share with the whole at their ends: int32 [len(ids) - 1]."""
    cdef int32_t[::1] lengths = np.empty(ids.shape[0], np.int32)
    if ids.shape[0] > 1:
        suffix_matches(&ids[0], <int32_t>ids.shape[0], &lengths[0])
    return np.asarray(lengths)[:max(ids.shape[0] - 1, 0)]


def gumbel(uint64_t seed, uint32_t index, uint32_t token, uint32_t completion=0, uint32_t purpose=0):
    """One number of Gumbel noise, as `Filters.sample` draws it."""
    cdef NoiseKey key = noise_key(seed, index, completion, purpose)
    return noise_gumbel(&key, token)


def gumbel_of_word(uint32_t word):
    """The Gumbel noise that 32 random bits stand for; finite for all of them."""
    return noise_of_word(word)


def philox(counter, key):
    """Philox 4×32-10 of four counter words and two key words (Salmon et al., SC 2011)."""
    cdef uint32_t[4] c_counter, out
    cdef uint32_t[2] c_key
    for i in range(4):
        c_counter[i] = counter[i]
    c_key[0], c_key[1] = key
    philox4x32_10(c_counter, c_key, out)
    return tuple(out[i] for i in range(4))
