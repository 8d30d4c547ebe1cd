"""Beginnings of texts that sessions have computed, for those that begin the same way."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from rillm.engine._engine import POSITIONS_PER_PAGE, Cache, Page


@dataclass(eq=False)
class _Node:
    """A page of tokens after its parent's; only leaves hold less than a page."""

    tokens: bytes  # int32
    pages: list[Page]  # one a ring
    parent: _Node | None
    children: dict[bytes, _Node] = field(default_factory=dict)
    used: int = 0

    @property
    def n_bytes(self) -> int:
        return sum(page.n_bytes for page in self.pages)


class PrefixCache:
    """A tree whose nodes are pages of 256 tokens, shared by all sessions of a model.

    A page is handed over as soon as it is full, and the last one when its session closes; it is
    shared, not copied. So a sliding layer's pages are here before they leave its window. A text may
    be taken up in the middle of a page: who writes on copies that page. The least recently used
    leaves go first. Safe to use from many threads.

    Attributes
    ----------
    n_bytes_at_most : int
    n_bytes : int
        Of keys and values in the tree.
    n_hits, n_tokens_found : int
        How often a beginning was found, and how many tokens in all were not computed again.
    """

    def __init__(self, n_bytes_at_most: int):
        self.n_bytes_at_most = n_bytes_at_most
        self.n_hits = self.n_tokens_found = 0
        self._lock = threading.Lock()
        self._clock = itertools.count()
        self.clear()

    def clear(self) -> None:
        """Forget everything; sessions keep what they hold."""
        with self._lock:
            self._roots: dict[object, _Node] = {}  # of each kind of rotary turns
            self.n_bytes = 0

    def find(
        self, turns: object, ids: Sequence[int], cache: Cache
    ) -> tuple[int, dict[tuple[int, int], Page]]:
        """How many of ids are known, and the pages that a cache of this kind needs after them.

        0 where the cache itself holds as many.
        """
        with self._lock:
            path, n = self._walk(turns, np.asarray(ids, np.int32))
            if n <= cache.length:
                return 0, {}
            for node in path:
                node.used = next(self._clock)
            self.n_hits += 1
            self.n_tokens_found += n - cache.length
            needed = cache.needs(n)
            return n, {(ring, number): path[number].pages[ring] for ring, number in needed}

    def store(
        self, turns: object, tokens: Sequence[int], cache: Cache, is_last: bool = False
    ) -> None:
        """Take over the full pages of a cache that holds tokens; `is_last`: and the one begun."""
        ids = np.asarray(tokens, np.int32)
        with self._lock:
            node = self._roots.setdefault(turns, _Node(b"", [], None))
            for number, part in enumerate(_parts(ids)):
                if len(part) < POSITIONS_PER_PAGE and not is_last:
                    break
                node = self._child(node, part.tobytes(), cache, number)
                if node is None:
                    break
                node.used = next(self._clock)
            self._evict()

    def _child(self, parent: _Node, tokens: bytes, cache: Cache, number: int) -> _Node | None:
        if tokens in parent.children:
            return parent.children[tokens]
        pages = [cache.page(ring, number) for ring in range(len(cache.page_bytes))]
        if None in pages:  # it was evicted here, and has left a ring since
            return None
        for known in list(parent.children):
            if known.startswith(tokens):
                return None  # more of the same is here
            if tokens.startswith(known):
                self._remove(parent.children[known])
        node = parent.children[tokens] = _Node(tokens, pages, parent)
        self.n_bytes += node.n_bytes
        return node

    def _walk(self, turns: object, ids: np.ndarray) -> tuple[list[_Node], int]:
        """The nodes along ids, and how many tokens they share; the last may branch off."""
        path: list[_Node] = []
        node, n = self._roots.get(turns), 0
        for part in _parts(ids) if node else ():
            if part.tobytes() in node.children and len(part) == POSITIONS_PER_PAGE:
                node = node.children[part.tobytes()]
                path.append(node)
                n += len(part)
                continue
            shared = [(_n_shared(part, child), child) for child in node.children.values()]
            most, child = max(shared, key=lambda pair: pair[0], default=(0, None))
            return ([*path, child], n + most) if most else (path, n)
        return path, n

    def _evict(self) -> None:
        while self.n_bytes > self.n_bytes_at_most:
            leaves = [node for root in self._roots.values() for node in _leaves(root)]
            self._remove(min(leaves, key=lambda node: node.used))

    def _remove(self, leaf: _Node) -> None:
        del leaf.parent.children[leaf.tokens]
        self.n_bytes -= leaf.n_bytes


def _parts(ids: np.ndarray) -> Iterator[np.ndarray]:
    return (ids[i : i + POSITIONS_PER_PAGE] for i in range(0, len(ids), POSITIONS_PER_PAGE))


def _n_shared(part: np.ndarray, child: _Node) -> int:
    known = np.frombuffer(child.tokens, np.int32)
    n = min(len(part), len(known))
    differs = np.flatnonzero(part[:n] != known[:n])
    return int(differs[0]) if len(differs) else n


def _leaves(node: _Node) -> Iterator[_Node]:
    for child in node.children.values():
        if child.children:
            yield from _leaves(child)
        else:
            yield child
