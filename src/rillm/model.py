"""The front door: a model from a name or a path, and what one asks of it."""

from __future__ import annotations

import operator
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence, Set
from dataclasses import replace
from functools import cached_property
from itertools import groupby
from pathlib import Path
from time import perf_counter

from rillm import cpu
from rillm.checkpoint import hub, open_checkpoint
from rillm.checkpoint.config import CONTEXT_AT_MOST
from rillm.decoding import loop
from rillm.decoding.astream import in_threads
from rillm.decoding.options import Sampling
from rillm.decoding.trace import Step
from rillm.decoding.turn_end import turn_end
from rillm.engine import available_isas, choose_isa
from rillm.engine._engine import (
    ACTIVATION_FORMATS,
    CONTEXT_POLICIES,
    KV_FORMATS,
    MOST_POSITIONS,
    Cache,
    Engine,
    RopeTable,
)
from rillm.errors import NotEnoughMemory, SessionClosed
from rillm.plan import make_plan, ropes_for
from rillm.prefix_cache import PrefixCache
from rillm.session import Session
from rillm.weights import packed
from rillm.weights.formats import FLOATS, canonical
from rillm.weights.packing import Layout


class Model:
    """Weights in memory, ready to decode; made by `Model.from_pretrained`.

    Attributes
    ----------
    vocab_size, context_length : int
    chat_template : str or None
        Jinja source, for `rillm.chat.template.render`.
    load_seconds : float
        What `from_pretrained` took, without fetching.
    prefixes : PrefixCache or None
        As `prefix_cache` made it.
    """

    load_seconds = 0.0

    def __init__(self, checkpoint, *, weights, activations, kv, threads, isa, context):
        self._config = config = checkpoint.config
        self._threads = threads
        self.context_length = config.context_length if context is None else context
        self._check_context(self.context_length)
        layout = Layout()
        self._plan = make_plan(checkpoint, weights, layout, activations)
        self._kv = self._choose_kv(kv)
        _check_memory(checkpoint.path, layout.n_bytes)
        n_threads, self._is_copy = self._threads.count, True
        self._weights = packed.load(checkpoint, weights, layout, n_threads)
        if self._weights is None:
            self._weights, self._is_copy = layout.pack(n_threads), False
        self._engine = Engine(self._plan, self._weights, isa, self._threads.count)
        self.vocab_size = config.vocab_size
        self.chat_template = checkpoint.chat_template
        self.checkpoint_generation = checkpoint.generation
        self._source, self._skipped = checkpoint.path, checkpoint.skipped
        self.prefixes: PrefixCache | None = None
        self._turns_by_length = any(rope.depends_on_length for rope in config.ropes)
        self._reencoded, self._widened = layout.reencoded(), layout.widened()
        self._checkpoint = checkpoint

    @classmethod
    def from_pretrained(
        cls,
        path_or_name: str | Path,
        *,
        weights: str = "auto",
        activations: str = "int8",
        kv: str = "auto",
        threads: int | None = None,
        context: int | None = None,
        progress=None,
    ) -> Model:
        """Load a model.

        Parameters
        ----------
        path_or_name : str or Path
            A folder or .gguf file; ``smollm2-135m``; ``owner/name``; ``owner/name:file.gguf``;
            ``owner/name:Q4_K_M``.
        weights : str
            "auto" (a quantized file's own formats, else q8), "f32", "bf16", "f16", "q8", "q4",
            "q4_64" (groups of 64 columns, not 32: a tenth smaller, less exact).
        activations : str
            What integer weights meet: "int8", or "int16" (two planes of int8, off by at most
            1/64516 of a group's largest, int8 by 1/254; prefill takes 1.6 to 2 times as long,
            a step that waits for memory 0.97 to 1.03).
        kv : str
            Of the cache: "auto" (f32 with f32 weights, else f16), "f32", "f16", "q8".
        threads : int, optional
            Default: physical performance cores within affinity and cgroup quota.
        context : int, optional
            Positions a session may hold; default: the model's own limit.
        progress : callable(done_bytes, total_bytes or None, what), optional
            Called while a file is fetched.

        Raises
        ------
        rillm.errors.CheckpointError
            One of its classes: what is wrong with the files, or too little memory.
        rillm.errors.DownloadError
            The model is not here and could not be fetched.
        ValueError
            An option is none of its values.
        """
        weights = canonical(weights)
        if kv not in ("auto", *KV_FORMATS):
            raise ValueError(f"kv is {kv!r}, expected one of auto, {', '.join(KV_FORMATS)}")
        if activations not in tuple(ACTIVATION_FORMATS):
            raise ValueError(
                f"activations is {activations!r}, expected one of {', '.join(ACTIVATION_FORMATS)}"
            )
        if threads is not None and not 1 <= threads <= cpu.MAX_THREADS:
            raise ValueError(f"threads is {threads}, expected 1 to {cpu.MAX_THREADS}")
        if context is not None:
            _check_context(context, CONTEXT_AT_MOST)
        chosen = cpu.Threads(threads, "asked for") if threads else cpu.default_threads()
        isa = choose_isa()
        path = hub.find(path_or_name, progress=progress)
        started = perf_counter()
        checkpoint = open_checkpoint(path)
        try:
            model = cls(
                checkpoint,
                weights=weights,
                activations=activations,
                kv=kv,
                threads=chosen,
                isa=isa,
                context=context,
            )
        finally:
            checkpoint.close()
        model.load_seconds = perf_counter() - started
        return model

    @property
    def tokenizer(self):
        """rillm.checkpoint.tokenizer.Tokenizer, built on first use."""
        return self._checkpoint.tokenizer

    @cached_property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Every id that ends a text: the files' own, and the chat template's end of a turn."""
        end = turn_end(self.chat_template, self.tokenizer)
        return tuple(dict.fromkeys([*self._checkpoint.eos_token_ids, *end]))

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """The ids of a text."""
        return self.tokenizer.encode(text, add_special_tokens=add_special_tokens)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of ids."""
        return self.tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)

    def session(
        self,
        context: int | None = None,
        *,
        context_policy: str = "stop",
        n_keep: int | None = None,
    ) -> Session:
        """A new, empty session.

        Parameters
        ----------
        context : int, optional
            The most positions a token sees, its own included; default: the model's.
        context_policy : str
            When the context is full: "stop" ends the text. "slide" goes on with the first `n_keep`
            tokens and the latest ones, up to the model's own range of positions. "sink" does so
            without end: the kept ones are seen as if nothing lay between (Xiao et al., arXiv
            2309.17453). Layers whose own window is no longer than the context stay as they are.
        n_keep : int, optional
            Default: 4 for "sink", else 0.

        Raises
        ------
        ValueError
            An option is none of its values, or the model cannot do it.
        """
        self._check_open()
        context = self.context_length if context is None else operator.index(context)
        self._check_context(context)
        if context_policy not in CONTEXT_POLICIES:
            raise ValueError(
                f"context_policy is {context_policy!r}, "
                f"expected one of {', '.join(CONTEXT_POLICIES)}"
            )
        if n_keep is None:
            n_keep = min(4, context - 1) if context_policy == "sink" else 0
        n_keep = operator.index(n_keep)
        most = 0 if context_policy == "stop" else context - 1
        if not 0 <= n_keep <= most:
            raise ValueError(
                f"n_keep is {n_keep}, expected 0 to {most} with a context of {context} and "
                f"context_policy {context_policy!r}"
            )
        if context_policy == "sink" and self._plan.positions:
            raise ValueError(
                "this model learned its positions one by one: none can be moved nearer"
            )
        model_range = max(context, self.context_length, self._config.context_length)
        limit = {"stop": context, "slide": model_range, "sink": MOST_POSITIONS}[context_policy]
        cache = Cache(self._engine, self._kv, context, context_policy, n_keep, limit)
        return Session(self, cache)

    def prefix_cache(self, bytes: int = 1 << 30) -> PrefixCache:
        """From now on, keep what sessions compute for others that begin the same way.

        Parameters
        ----------
        bytes : int
            Of keys and values at most; 0: none is kept any more.
        """
        if bytes < 0:
            raise ValueError(f"bytes is {bytes}, expected 0 or more")
        prefixes = PrefixCache(bytes)
        self.prefixes = prefixes if bytes else None
        return prefixes

    @cached_property
    def fingerprint(self) -> str:
        """A hash of weights and arithmetic.

        Where it is equal, and `activations` and the kv format, which it leaves out, so are keys
        and values.
        """
        from hashlib import sha256

        if self._weights is None:
            raise SessionClosed("this model is closed: save its sessions before")
        digest = sha256(self._weights.view())
        plan = replace(self._plan, activation_format="")  # told by itself, as the cache's is
        digest.update(repr((self._config.model_type, plan)).encode())
        for frequencies, amplitude in self._plan.ropes:
            digest.update(frequencies.tobytes() + repr(amplitude).encode())
        return digest.hexdigest()

    def stream(
        self,
        prompt: str | Sequence[int],
        *,
        session: Session | None = None,
        cache_prompt: bool = False,
        on_prefill: Callable[[int, int], None] | None = None,
        on_step: Callable[[Step], None] | None = None,
        **options,
    ) -> loop.Stream:
        """Generate, piece by piece, from a raw prompt (text or ids).

        Parameters
        ----------
        prompt : str or sequence of int
        session : Session, optional
            The prompt follows what it holds; by default a session of its own.
        cache_prompt : bool
            The prompt is the whole text: the common beginning of it and of what the session holds
            stays, the rest is forgotten (`Session.reuse`).
        on_prefill : callable(n_done, n_total), optional
            Called while the prompt is evaluated.
        on_step : callable(rillm.decoding.trace.Step), optional
            Called with each token and why it was chosen.
        options
            The fields of `rillm.decoding.options.Sampling`.

        Raises
        ------
        TypeError, ValueError
            The prompt is neither text nor ids, or an option is unknown, or out of its range; before
            any work.
        """
        sampling = Sampling.from_options(self.checkpoint_generation, options)
        ids = self.encode(prompt) if isinstance(prompt, str) else _listed(prompt)
        if wrong := [each for each in ids if not _is_id(each)]:
            raise TypeError(f"the prompt holds {wrong[0]!r}, expected text or token ids")
        if cache_prompt and sampling.prompt_logprobs is not None:
            raise ValueError("prompt_logprobs asks for what cache_prompt would not compute")
        may_reuse = session is None and self.prefixes and sampling.prompt_logprobs is None
        return loop.stream(
            self.session() if session is None else session,
            self.tokenizer,
            self.eos_token_ids,
            ids,
            sampling,
            reuse=cache_prompt or bool(may_reuse),
            on_prefill=on_prefill,
            on_step=on_step,
            close_session=session is None,
            load_seconds=self.load_seconds,
            bytes_per_token=self._bytes_per_token,
        )

    def astream(self, prompt: str | Sequence[int], **options) -> AsyncIterator[loop.Piece]:
        """`stream` for ``async for``: each piece is computed in a thread.

        Leaving cancels, and so does cancelling the task: that takes effect when the step or the
        part of the prompt that is being computed is done, so that nothing uses the session then.
        """
        return in_threads(self.stream(prompt, **options))

    def generate(
        self, prompt: str | Sequence[int] | Sequence[str] | Sequence[Sequence[int]], **options
    ) -> loop.Result | list[loop.Result] | list[list[loop.Result]]:
        """The whole of `stream` at once.

        A list of prompts gives a list of results, each what the prompt alone would give; `n` above
        1 gives a list of n results for each prompt.
        """
        if not isinstance(prompt, str):
            prompt = _listed(prompt)
            if not all(map(_is_id, prompt)):
                if options.get("session") is not None:
                    raise ValueError("a session continues one prompt: give it without a list")
                return [self.generate(each, **options) for each in prompt]
        pieces = self.stream(prompt, **options)
        results = [loop.collect(each) for _, each in groupby(pieces, lambda p: p.completion)]
        return results if len(results) > 1 else results[0]

    def info(self) -> dict:
        """What runs and on what: shapes, formats and bytes, ISA, threads and why, pages."""
        self._check_open()
        config, formats = self._config, {}
        embedding = [] if self._plan.embedding is self._plan.head else [self._plan.embedding]
        for matrix in [*self._plan.matrices, *embedding]:
            for segment in matrix.segments:
                n_bytes = segment.n_panels * matrix.panel_bytes(segment)
                formats[segment.format] = formats.get(segment.format, 0) + n_bytes
        return {
            "model": str(self._source),
            "family": config.model_type,
            "n_parameters": self._plan.n_parameters,
            "shapes": {
                "layers": config.n_layers,
                "dim": config.dim,
                "heads": config.n_heads,
                "kv_heads": config.n_kv_heads,
                "head_dim": config.head_dim,
                "ffn_dim": config.ffn_dim,
                "vocab": config.vocab_size,
                "context": self.context_length,
            },
            "weights": formats,
            "activations": self.activations,
            "kv": self._kv,
            "kv_bytes_per_position": self._plan.kv_bytes_per_position(self._kv),
            "bytes_per_token": self._bytes_per_token,
            "stage_bytes": self._plan.stage_bytes,
            "isa_available": available_isas(),
            "isa": self._engine.isa,
            "threads": self._threads.count,
            "threads_why": self._threads.why,
            "huge_pages": "asked for and granted" if self._weights.huge_pages else "no",
            "skipped": self._skipped,
            "source": self._checkpoint.format,
            "packed_copy": self._is_copy,
            "reencoded": self._reencoded,
            "widened": self._widened,
        }

    def close(self) -> None:
        """Let go of the weights; sessions still open keep them until they are closed."""
        self._engine = self._weights = None

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def activations(self) -> str:
        """What matrices meet: "int8" or "int16", or "f32" where none of them is of integers."""
        return self._plan.activation_format if self._formats - {*FLOATS} else "f32"

    @property
    def _formats(self) -> set[str]:
        return {s.format for matrix in self._plan.matrices for s in matrix.segments}

    @property
    def _bytes_per_token(self) -> int:
        return sum(matrix.n_bytes for matrix in self._plan.matrices)

    @property
    def ropes_for(self):
        """None, or for a length what turns a text of it: a key, and what makes their table."""
        return self._ropes_for if self._turns_by_length else None

    def _ropes_for(self, length: int):
        """The key of a length, equal where frequencies are, and what makes their table."""
        key = tuple(rope.regime(length) for rope in self._config.ropes)
        return key, lambda: RopeTable(ropes_for(self._config, length))

    def _check_open(self) -> None:
        if self._engine is None:
            raise SessionClosed("this model is closed")

    def _check_context(self, context: int) -> None:
        learned = "positions" in self._config.arithmetic.names  # no vector beyond the last one
        _check_context(context, self._config.context_length if learned else CONTEXT_AT_MOST)

    def _choose_kv(self, kv: str) -> str:
        if kv != "auto":
            return kv
        return "f32" if self._formats == {"f32"} else "f16"


def _check_context(context: int, most: int) -> None:
    if not 1 <= context <= most:
        raise ValueError(f"context is {context}, expected 1 to {most}")


def _listed(prompt) -> list:
    """Its elements in order, which bytes, sets and mappings hold without being prompts."""
    others = bytes, bytearray, memoryview, Set, Mapping
    if isinstance(prompt, others) or not isinstance(prompt, Iterable):
        raise TypeError(f"a prompt is {prompt!r:.60}, expected text or a sequence of token ids")
    return list(prompt)


def _is_id(value) -> bool:
    if isinstance(value, bool):
        return False
    try:
        operator.index(value)
    except TypeError:  # of an array, too, that is not one number
        return False
    return True


def _check_memory(path: Path, n_bytes: int) -> None:
    free = cpu.free_memory_bytes()
    if n_bytes > free:
        raise NotEnoughMemory(
            f"{path}: the weights need {n_bytes / 1e9:.2f} GB, but {free / 1e9:.2f} GB are free: "
            "take a smaller model, a file of fewer bits, or weights='q8' or 'q4'"
        )
