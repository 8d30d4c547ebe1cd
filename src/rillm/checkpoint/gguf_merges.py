"""SentencePiece's scores as a list of merges, best first; a long list is computed once and kept."""

import hashlib
import logging
import math
import os
import tempfile
from pathlib import Path

import numpy as np

from rillm.errors import MalformedFile

_KEPT_FROM = 50_000  # tokens; fewer take a moment

_log = logging.getLogger(__name__)


def merges_by_score(
    source: Path, ids: dict[str, int], scores: list[float], folder: Path
) -> list[tuple[str, str]]:
    """Every two tokens that make a third, in the order of its score, then of its id.

    SentencePiece joins the neighbours whose union has the best score. `folder` holds the lists of
    large vocabularies, by their checksum.
    """
    if not all(map(math.isfinite, scores)):
        raise MalformedFile(f"{source}: tokenizer.ggml.scores holds a value that is not finite")
    tokens = list(ids)
    if len(tokens) < _KEPT_FROM:
        pairs = _pairs(ids, scores)
    else:
        digest = hashlib.sha256("\0".join(tokens).encode())
        digest.update(np.array(scores, "<f8").tobytes())
        file = folder / f"{digest.hexdigest()[:32]}.npy"
        pairs = _kept(file, len(tokens))
        if pairs is None:
            pairs = _pairs(ids, scores)
            _keep(file, pairs)
    left, right = (map(tokens.__getitem__, half.tolist()) for half in pairs.T)
    return list(zip(left, right, strict=True))


def _pairs(ids: dict[str, int], scores: list[float]) -> np.ndarray:
    """int32 [n, 2]: ids of the halves, whose lengths are those of tokens: a long token has few."""
    tokens, get = list(ids), ids.get
    lengths = sorted(set(map(len, tokens)))
    n_shorter = {length: i for i, length in enumerate(lengths)}
    best_first = sorted(range(len(tokens)), key=lambda id: -scores[id])
    found = [
        (left, right)
        for token in map(tokens.__getitem__, best_first)
        for cut in lengths[: n_shorter[len(token)]]
        if (left := get(token[:cut])) is not None and (right := get(token[cut:])) is not None
    ]
    return np.array(found, np.int32).reshape(-1, 2)


def _kept(file: Path, n_tokens: int) -> np.ndarray | None:
    try:
        pairs = np.load(file, allow_pickle=False) if file.is_file() else None
    except (OSError, ValueError, EOFError) as error:
        _log.warning("%s: damaged, building it anew (%s)", file, error)
        return None
    if pairs is None or (pairs.ndim == 2 and pairs.dtype == np.int32 and _fits(pairs, n_tokens)):
        return pairs
    _log.warning("%s: damaged, building it anew (%s %s)", file, pairs.dtype, pairs.shape)
    return None


def _fits(pairs: np.ndarray, n_tokens: int) -> bool:
    return pairs.shape[1] == 2 and (not len(pairs) or 0 <= pairs.min() <= pairs.max() < n_tokens)


def _keep(file: Path, pairs: np.ndarray) -> None:
    """Write the file whole or not at all; without a writable folder the next load builds again."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            dir=file.parent, prefix=".partial-", delete=False
        ) as partial:
            try:
                np.save(partial, pairs)
                partial.close()
                os.replace(partial.name, file)
            except BaseException:
                os.unlink(partial.name)
                raise
    except OSError as error:
        _log.info("%s: not kept (%s)", file, error)
