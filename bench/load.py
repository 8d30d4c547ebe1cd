"""How fast models load, from their files and from packed copies, each time in a new process.

python bench/load.py --shapes 135m,1b [--kind Q8_0] [MODEL ...] [--json load.json]
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

CONTEXT = 512
IMPORTS = ("numpy", "rillm", "model")


def anonymous_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/self/status has no RssAnon")


class Peak:
    """The most anonymous memory that a look every two milliseconds saw."""

    def __enter__(self):
        self.n_bytes, self.done = anonymous_bytes(), threading.Event()
        self.thread = threading.Thread(target=self._watch)
        self.thread.start()
        return self

    def _watch(self):
        while not self.done.wait(0.002):
            self.n_bytes = max(self.n_bytes, anonymous_bytes())

    def __exit__(self, *_):
        self.done.set()
        self.thread.join()


def child(path: str, weights: str) -> None:
    """One load in this process, up to 32 tokens; prints a line at the first one, then figures."""
    begun = time.perf_counter()
    import numpy  # noqa: F401

    numpy_imported = time.perf_counter()
    import rillm

    rillm_imported = time.perf_counter()
    _ = rillm.Model
    figures = {
        "import_numpy_seconds": numpy_imported - begun,
        "import_rillm_seconds": rillm_imported - begun,
        "import_model_seconds": time.perf_counter() - begun,
    }
    with Peak() as peak:
        begun, cpu_begun = time.perf_counter(), time.process_time()
        model = rillm.Model.from_pretrained(path, weights=weights)
        figures["load_seconds"] = time.perf_counter() - begun
        figures["load_cpu_seconds"] = time.process_time() - cpu_begun
    try:
        ids = model.encode("The capital of France is")
    except rillm.errors.CheckpointError:  # random weights come without words
        ids = [1, 2, 3, 4, 5, 6]
    figures["load_and_encode_seconds"] = time.perf_counter() - begun
    session = model.session(context=CONTEXT)
    token = int(session.prefill(ids).argmax())
    print(token, flush=True)
    for _ in range(32):
        token = int(session.step(token).argmax())
    info = model.info()
    n_bytes = model._weights.n_bytes
    kv_bytes = info["kv_bytes_per_position"] * CONTEXT
    figures |= {
        "copy": info["packed_copy"],
        "packed_bytes": n_bytes,
        "peak_beside_weights_bytes": peak.n_bytes - n_bytes,
        "decoding_beside_weights_and_kv_bytes": anonymous_bytes() - n_bytes - kv_bytes,
    }
    print(json.dumps(figures), flush=True)


def run(path: Path, weights: str) -> dict:
    """A child's figures, and the seconds from its start to its first token."""
    begun = time.perf_counter()
    command = [sys.executable, __file__, "--child", str(path), "--weights", weights]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        process.stdout.readline()
        first = time.perf_counter() - begun
        figures = json.loads(process.stdout.readline())
    return figures | {"first_token_seconds": first}


def file_bytes(path: Path) -> int:
    files = [path] if path.is_file() else path.glob("*.safetensors")
    return sum(file.stat().st_size for file in files)


def measure(path: Path, weights: str, rounds: int) -> list[dict]:
    """The least of each figure over all rounds, of the source and of its copy, turn about."""
    from rillm.weights import copies

    rows = []
    for copied in (False, True):
        if copied:
            copies.add(path, weights, 1 << 40)
        runs = [run(path, weights) for _ in range(rounds)]
        best = {key: min(figures[key] for figures in runs) for key in runs[0]}
        rows.append({"model": path.name, "weights": weights, "file_bytes": file_bytes(path)} | best)
    return rows


def table(rows: list[dict]) -> str:
    names = ("model", "from", "load s", "CPU s", "s/GB", "CPU s/GB", "load + encode s")
    names += ("start to token s", "MB at most beside weights", "MB decoding beside weights and KV")
    lines = ["| " + " | ".join(names) + " |", "|---" * len(names) + "|"]
    for row in rows:
        gigabytes = row["file_bytes"] / 1e9
        cells = [
            row["model"],
            "copy" if row["copy"] else "file",
            f"{row['load_seconds']:.3f}",
            f"{row['load_cpu_seconds']:.3f}",
            f"{row['load_seconds'] / gigabytes:.2f}",
            f"{row['load_cpu_seconds'] / gigabytes:.2f}",
            f"{row['load_and_encode_seconds']:.3f}",
            f"{row['first_token_seconds']:.2f}",
            f"{row['peak_beside_weights_bytes'] / 1e6:.0f}",
            f"{row['decoding_beside_weights_and_kv_bytes'] / 1e6:.0f}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    imports = {f"{key}": min(row[f"import_{key}_seconds"] for row in rows) for key in IMPORTS}
    words = ", ".join(f"{key} {seconds * 1e3:.0f} ms" for key, seconds in imports.items())
    return "\n".join([*lines, f"imports, each with those before it: {words}"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", type=Path, metavar="MODEL")
    parser.add_argument("--shapes", default="", help="names of bench/shapes.py, random weights")
    parser.add_argument("--kind", default="Q8_0", help="of random weights: Q8_0 or Q4_0")
    parser.add_argument("--weights", default="auto")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "rillm-shapes")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--child", metavar="MODEL", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child, options.weights)
        return
    options.folder.mkdir(parents=True, exist_ok=True)
    if options.shapes:
        from shapes import write

        names = options.shapes.split(",")
        options.models += [write(options.folder, name, options.kind) for name in names]
    with tempfile.TemporaryDirectory(dir=options.folder) as home:
        os.environ["RILLM_HOME"] = home
        rows = []
        for path in options.models:
            rows += measure(path, options.weights, options.rounds)
    print(table(rows))
    load, n_cpus = os.getloadavg()[0], os.cpu_count()
    print(f"least of {options.rounds} processes each; load average {load:.1f} on {n_cpus} CPUs")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
