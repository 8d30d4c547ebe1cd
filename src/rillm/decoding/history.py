"""The tokens so far as one growing array, so that a step copies none of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


class History:
    """Prompt and new tokens.

    Attributes
    ----------
    n_prompt : int
        How many of them were there before the first new one.
    """

    def __init__(self, prompt: Sequence[int]) -> None:
        self.n_prompt = self._n = len(prompt)
        self._ids = np.empty(2 * self._n + 1024, np.int32)
        self._ids[: self._n] = prompt

    @property
    def tokens(self) -> np.ndarray:
        """int32 [n], a view that cannot be written to."""
        view = self._ids[: self._n]
        view.flags.writeable = False
        return view

    def append(self, token: int) -> None:
        if self._n == len(self._ids):
            self._ids = np.concatenate([self._ids, np.empty_like(self._ids)])
        self._ids[self._n] = token
        self._n += 1

    def forget_new(self) -> None:
        """Back to the prompt, for another completion."""
        self._n = self.n_prompt
