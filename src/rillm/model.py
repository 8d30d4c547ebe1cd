"""The front door: a model from a name or a path, and what one asks of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from rillm import cpu
from rillm.checkpoint import hub, open_checkpoint
from rillm.decoding import loop
from rillm.decoding.sampling import Sampling
from rillm.engine import available_isas, choose_isa
from rillm.engine._engine import KV_FORMATS, Engine, RopeTable
from rillm.errors import NotEnoughMemory, SessionClosed
from rillm.plan import make_plan, ropes_for
from rillm.session import Session
from rillm.weights.formats import canonical
from rillm.weights.packing import Layout

CONTEXT_AT_MOST = 1 << 24  # positions; a config beyond this is a mistake


class Model:
    """Weights in memory, ready to decode; made by `Model.from_pretrained`.

    Attributes
    ----------
    eos_token_ids : tuple of int
        Every id that ends a text.
    vocab_size, context_length : int
    chat_template : str or None
        Jinja source, for `rillm.chat.template.render`.
    """

    def __init__(self, checkpoint, *, weights, kv, threads, context):
        self._config = config = checkpoint.config
        self._threads = cpu.Threads(threads, "asked for") if threads else cpu.default_threads()
        if threads is not None and not 1 <= threads <= cpu.MAX_THREADS:
            raise ValueError(f"threads is {threads}, expected 1 to {cpu.MAX_THREADS}")
        self.context_length = config.context_length if context is None else context
        self._check_context(self.context_length)
        isa = choose_isa()
        layout = Layout()
        self._plan = make_plan(checkpoint, weights, layout)
        self._kv = self._choose_kv(kv)
        _check_memory(checkpoint.path, layout.n_bytes)
        self._weights = layout.pack(self._threads.count)
        self._engine = Engine(self._plan, self._weights, isa, self._threads.count)
        self.vocab_size = config.vocab_size
        self.eos_token_ids = checkpoint.eos_token_ids
        self.chat_template = checkpoint.chat_template
        self.checkpoint_generation = checkpoint.generation
        self._source, self._skipped, self._asked = checkpoint.path, checkpoint.skipped, weights
        self._reencoded = layout.reencoded()
        self._checkpoint = checkpoint

    @classmethod
    def from_pretrained(
        cls,
        path_or_name: str | Path,
        *,
        weights: str = "auto",
        kv: str = "auto",
        threads: int | None = None,
        context: int | None = None,
        progress=None,
    ) -> Model:
        """Load a model.

        Parameters
        ----------
        path_or_name : str or Path
            A folder or .gguf file; ``smollm2-135m``; ``owner/name``; ``owner/name:file.gguf``.
        weights : str
            "auto" (a quantized file's own formats, else q8), "f32", "bf16", "f16", "q8", "q4".
        kv : str
            Of the cache: "auto" (f32 with f32 weights, else f16), "f32", "f16".
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
        checkpoint = open_checkpoint(hub.find(path_or_name, progress=progress))
        try:
            return cls(checkpoint, weights=weights, kv=kv, threads=threads, context=context)
        finally:
            checkpoint.close()

    @property
    def tokenizer(self):
        """rillm.checkpoint.tokenizer.Tokenizer, built on first use."""
        return self._checkpoint.tokenizer

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """The ids of a text."""
        return self.tokenizer.encode(text, add_special_tokens=add_special_tokens)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of ids."""
        return self.tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)

    def session(self, context: int | None = None) -> Session:
        """A new, empty session of at most `context` positions (default: the model's)."""
        if self._engine is None:
            raise SessionClosed("this model is closed")
        context = self.context_length if context is None else context
        self._check_context(context)
        ropes_for = (
            self._ropes_for if any(r.depends_on_length for r in self._config.ropes) else None
        )
        return Session(self._engine, self.vocab_size, self._kv, context, ropes_for)

    def stream(self, prompt: str | Sequence[int], **options) -> Iterator[loop.Piece]:
        """Generate, piece by piece, from a raw prompt (text or ids) in a session of its own.

        Options are the fields of `rillm.decoding.sampling.Sampling`; an unknown one is a TypeError.
        """
        sampling = Sampling.from_options(self.checkpoint_generation, options)
        ids = self.encode(prompt) if isinstance(prompt, str) else list(prompt)
        session = self.session()
        pieces = loop.stream(session, self.tokenizer, self.eos_token_ids, ids, sampling)
        return _closing(session, pieces)

    def generate(self, prompt: str | Sequence[int], **options) -> loop.Result:
        """The whole of `stream` at once: text, token_ids, finish_reason, seed, timings."""
        return loop.collect(self.stream(prompt, **options))

    def info(self) -> dict:
        """What runs and on what: shapes, formats and bytes, ISA, threads and why, pages."""
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
            "kv": self._kv,
            "kv_bytes_per_position": self._plan.kv_bytes_per_position(self._kv),
            "bytes_per_token": sum(matrix.n_bytes for matrix in self._plan.matrices),
            "isa_available": available_isas(),
            "isa": self._engine.isa,
            "threads": self._threads.count,
            "threads_why": self._threads.why,
            "huge_pages": "asked for and granted" if self._weights.huge_pages else "no",
            "skipped": self._skipped,
            "source": self._checkpoint.format,
            "reencoded": self._reencoded,
        }

    def close(self) -> None:
        """Let go of the weights; sessions still open keep them until they are closed."""
        self._engine = self._weights = None

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ropes_for(self, length: int):
        """The key of a length, equal where frequencies are, and what makes their table."""
        key = tuple(rope.regime(length) for rope in self._config.ropes)
        return key, lambda: RopeTable(ropes_for(self._config, length))

    def _check_context(self, context: int) -> None:
        learned = "positions" in self._config.arithmetic.names  # no vector beyond the last one
        most = self._config.context_length if learned else CONTEXT_AT_MOST
        if not 1 <= context <= most:
            raise ValueError(f"context is {context}, expected 1 to {most}")

    def _choose_kv(self, kv: str) -> str:
        if kv != "auto":
            return kv
        formats = {s.format for matrix in self._plan.matrices for s in matrix.segments}
        return "f32" if formats == {"f32"} else "f16"


def _closing(session: Session, pieces: Iterator[loop.Piece]) -> Iterator[loop.Piece]:
    with session:
        yield from pieces


def _check_memory(path: Path, n_bytes: int) -> None:
    free = cpu.free_memory_bytes()
    if n_bytes > free:
        raise NotEnoughMemory(
            f"{path}: the weights need {n_bytes / 1e9:.2f} GB, but {free / 1e9:.2f} GB are free: "
            "choose a smaller format (weights='q8' or 'q4') or a smaller model"
        )
