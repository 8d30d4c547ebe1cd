"""One face for each engine: load a GGUF, fill a context, decode, prefill; seconds of each call."""

import ctypes
import json
import subprocess
from functools import cache
from pathlib import Path
from time import perf_counter

import rillm

KV_TYPES = {"f32": 0, "f16": 1, "q8": 8}  # of ggml


class Stepwise:
    """An engine that is timed call by call: fill, step, verify."""

    works = None  # all

    def prepare(self, work: str, depth: int) -> None:
        if work != "prefill":
            self.fill([1 + i % 1000 for i in range(max(depth, 8))])

    def turn(self, work: str, depth: int, n_tokens: int) -> list[float]:
        """Seconds a token, of each call of a turn."""
        if work == "prefill":
            return [self.fill([1 + i % 1000 for i in range(512)]) / 512]
        if work.startswith("rows"):
            ids = [1 + i for i in range(int(work.removeprefix("rows")))]
            self.verify(ids)
            return [self.verify(ids) / len(ids) for _ in range(n_tokens)]
        self.step(1)  # its own weights into what caches there are
        return [self.step(1 + i) for i in range(n_tokens)]


class Rillm(Stepwise):
    name = "rillm"

    def __init__(self, path, *, threads, kv, context, **_):
        self.model = rillm.Model.from_pretrained(path, threads=threads, kv=kv, context=context)
        self.session = self.model.session()
        info = self.model.info()
        self.flags = f"kv {info['kv']}, {info['threads']} threads, {info['isa']}"
        self.bytes_per_token = info["bytes_per_token"]
        self.kv_bytes_per_position = info["kv_bytes_per_position"]

    def fill(self, tokens) -> float:
        """Seconds to take these tokens into an empty context."""
        self.session.rewind(0)
        begun = perf_counter()
        self.session.prefill(tokens)
        return perf_counter() - begun

    def step(self, token) -> float:
        """Seconds of one decode step, logits in hand."""
        begun = perf_counter()
        self.session.step(token)
        return perf_counter() - begun

    def verify(self, tokens) -> float:
        """Seconds of one step of several rows, the logits of all in hand; it leaves no trace."""
        begun = perf_counter()
        self.session.logits(tokens)
        seconds = perf_counter() - begun
        self.session.rewind(self.session.position - len(tokens))
        return seconds

    def greedy(self, tokens, n) -> list[int]:
        """The n likeliest tokens, one after another, after these."""
        self.session.rewind(0)
        logits, out = self.session.prefill(tokens), []
        for _ in range(n):
            out.append(int(logits.argmax()))
            logits = self.session.step(out[-1])
        return out

    def close(self):
        self.session.close()
        self.model.close()


@cache
def silence(llama_cpp):
    """No log lines; the callback must outlive every engine."""
    callback = llama_cpp.llama_log_callback(lambda *_: None)
    llama_cpp.llama_log_set(callback, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    return callback


class LlamaCpp(Stepwise):
    name = "llama.cpp"

    def __init__(self, path, *, threads, kv, context, flash_attention=True, repack=True, **_):
        import llama_cpp

        self.c = llama_cpp
        silence(llama_cpp)
        of_model = llama_cpp.llama_model_default_params()
        of_model.load_mode = llama_cpp.LLAMA_LOAD_MODE_NONE  # in anonymous memory
        of_model.use_extra_bufts = repack  # weights laid out anew for this CPU
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), of_model)
        of_context = llama_cpp.llama_context_default_params()
        of_context.n_ctx = context
        of_context.n_batch = of_context.n_ubatch = 512
        of_context.n_threads = of_context.n_threads_batch = threads
        of_context.type_k = of_context.type_v = KV_TYPES["f16" if kv == "auto" else kv]
        of_context.flash_attn_type = int(flash_attention)
        self.context = llama_cpp.llama_init_from_model(self.model, of_context)
        if not self.context:
            llama_cpp.llama_model_free(self.model)
            raise ValueError(f"llama.cpp has no context of kv {kv}, {flash_attention=}")
        vocab = llama_cpp.llama_model_get_vocab(self.model)
        self.vocab_size = llama_cpp.llama_vocab_n_tokens(vocab)
        on = "on" if flash_attention else "off"
        self.flags = f"kv {kv}, {threads} threads, flash attention {on}, repack {int(repack)}"

    def _decode(self, tokens) -> float:
        array = (self.c.llama_token * len(tokens))(*tokens)
        begun = perf_counter()
        if self.c.llama_decode(self.context, self.c.llama_batch_get_one(array, len(tokens))):
            raise RuntimeError("llama_decode failed")
        self.logits = self.c.llama_get_logits(self.context)
        return perf_counter() - begun

    def fill(self, tokens) -> float:
        self.c.llama_memory_clear(self.c.llama_get_memory(self.context), True)
        return sum(self._decode(tokens[i : i + 512]) for i in range(0, len(tokens), 512))

    def step(self, token) -> float:
        return self._decode([token])

    def verify(self, tokens) -> float:
        """As one batch; of the last token's logits alone, which is less than is asked of others."""
        seconds, memory = self._decode(tokens), self.c.llama_get_memory(self.context)
        last = self.c.llama_memory_seq_pos_max(memory, 0)
        self.c.llama_memory_seq_rm(memory, 0, last - len(tokens) + 1, -1)
        return seconds

    def greedy(self, tokens, n) -> list[int]:
        self.fill(tokens)
        out = []
        for _ in range(n):
            row = self.logits[: self.vocab_size]
            out.append(max(range(self.vocab_size), key=row.__getitem__))
            self._decode(out[-1:])
        return out

    def close(self):
        self.c.llama_free(self.context)
        self.c.llama_model_free(self.model)


class WholeAnswers:
    """An engine that answers as a whole: it tells its rates of prefill and decoding itself."""

    def prepare(self, work, depth):
        pass

    def close(self):
        pass


class LlamaBench(WholeAnswers):
    """Any binary that takes llama-bench's options and prints its JSON, a process a turn."""

    works = ("decode", "depth", "prefill")

    def __init__(self, path, *, binary, threads, kv, **_):
        self.name = Path(binary).stem
        kv = "f16" if kv == "auto" else {"q8": "q8_0"}.get(kv, kv)
        self.flags = f"kv {kv}, {threads} threads, flash attention on"
        self.command = [str(binary), "-m", str(path), "-t", str(threads), "-r", "1", "-fa", "1"]
        self.command += ["-ctk", kv, "-ctv", kv, "-o", "json"]

    def turn(self, work, depth, n_tokens):
        prefills = work == "prefill"
        asked = {"-p": 512 if prefills else 0, "-n": 0 if prefills else 8 * n_tokens}
        asked["-d"] = depth if work == "depth" else 0
        options = [str(part) for pair in asked.items() for part in pair]
        found = subprocess.run(self.command + options, capture_output=True, text=True, check=True)
        return [1 / json.loads(found.stdout)[0]["avg_ts"]]


class MistralRs(WholeAnswers):
    """Of a GGUF file with a tokenizer; it uses the threads it likes."""

    name = "mistralrs"
    works = ("decode", "prefill")

    def __init__(self, path, **_):
        import mistralrs

        self.request = mistralrs.CompletionRequest
        self.flags = "as it is installed"
        which = mistralrs.Which.GGUF(str(path.parent), path.name)
        self.runner, self.n_asked = mistralrs.Runner(which=which), 0

    def ask(self, prompt, n_tokens):
        request = self.request(model="default", prompt=prompt, max_tokens=n_tokens, temperature=0.0)
        return self.runner.send_completion_request(request)

    def turn(self, work, depth, n_tokens):
        self.n_asked += 1  # never a beginning that it keeps
        prompt = f"{self.n_asked}" + " and one" * (256 if work == "prefill" else 4)
        usage = self.ask(prompt, 1 if work == "prefill" else 8 * n_tokens).usage
        rate = usage.avg_prompt_tok_per_sec if work == "prefill" else usage.avg_compl_tok_per_sec
        return [1 / rate]


class CTranslate2(WholeAnswers):
    """A folder of its converter; decoding is what a longer answer takes more."""

    name = "ctranslate2"
    works = ("decode", "prefill")

    def __init__(self, folder, *, threads, **_):
        import ctranslate2

        self.generator = ctranslate2.Generator(str(folder), device="cpu", intra_threads=threads)
        self.vocabulary = json.loads((folder / "vocabulary.json").read_text("utf-8"))
        self.flags = f"{self.generator.compute_type} of its own, {threads} threads"

    def greedy(self, tokens, n) -> list[int]:
        words = [self.vocabulary[token] for token in tokens]
        found = self.generator.generate_batch(
            [words], max_length=n, min_length=n, include_prompt_in_result=False
        )
        return found[0].sequences_ids[0]

    def turn(self, work, depth, n_tokens):
        def seconds(n_prompt, n):
            begun = perf_counter()
            self.greedy([1 + i % 1000 for i in range(n_prompt)], n)
            return perf_counter() - begun

        if work == "prefill":
            return [seconds(512, 1) / 512]
        return [(seconds(8, 1 + 8 * n_tokens) - seconds(8, 1)) / (8 * n_tokens)]


ENGINES = {engine.name: engine for engine in (Rillm, LlamaCpp)}
