"""SentencePiece's scores as a list of merges, best first."""

import numpy as np

from rillm.checkpoint import _strings
from rillm.checkpoint.metadata import Array
from rillm.errors import MalformedFile


def merges_by_score(array: Array, tokens: list[str], scores: np.ndarray) -> list[tuple[str, str]]:
    """The two tokens that each is made of, in the order of its score, then of its id.

    SentencePiece joins the neighbours whose union has the best score. Many tokens can be cut into
    two others in several ways, but their own letters are joined in one.
    """
    if not np.isfinite(scores).all():
        raise MalformedFile(f"{array.file}: tokenizer.ggml.scores holds a value that is not finite")
    best_first = np.argsort(-scores.astype(np.float64), kind="stable")
    return _strings.joined(tokens, _strings.pairs_of(array.data, array.starts, best_first))
