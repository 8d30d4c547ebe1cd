"""The roof: how fast all threads together can read memory, which no decode step can beat."""

import itertools
import os
import threading
from time import perf_counter

from rillm.engine import choose_isa
from rillm.engine._engine import Weights
from rillm.engine._kernels import read_sum

N_BYTES = 1 << 30  # beyond the caches of most machines
PASSES = 5


class Roof:
    """Memory in huge pages, filled once and read again on each `measure`."""

    def __init__(self, n_threads: int, n_bytes: int = N_BYTES):
        self.n_bytes, self.n_threads, self.isa = n_bytes, n_threads, choose_isa()
        self._memory = Weights(n_bytes)  # keeps the arena that the floats lie in
        floats = self._memory.view()
        floats[:] = 1.0
        edges = [n_bytes // 4 * i // n_threads // 64 * 64 for i in range(n_threads + 1)]
        self._parts = [floats[a:b] for a, b in itertools.pairwise(edges)]

    def measure(self, passes: int = PASSES) -> float:
        """Bytes per second of the best of some passes, each thread held to a core of its own.

        A pass lasts from its first thread's start to its last one's end, as they saw it: whoever
        waits for them would look at the clock late, the cores being theirs.
        """
        start = threading.Barrier(self.n_threads)
        cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        spans = [[(0.0, 0.0)] * self.n_threads for _ in range(passes)]

        def read(i: int) -> None:
            if cores:
                os.sched_setaffinity(0, {cores[i % len(cores)]})  # of this thread alone
            for span in spans:
                start.wait()
                begun = perf_counter()
                read_sum(self.isa, self._parts[i])
                span[i] = (begun, perf_counter())

        threads = [threading.Thread(target=read, args=(i,)) for i in range(self.n_threads)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seconds = [max(end for _, end in span) - min(begun for begun, _ in span) for span in spans]
        return self.n_bytes / min(seconds)
