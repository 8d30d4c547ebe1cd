# cython: language_level=3, boundscheck=False, wraparound=False, embedsignature=True
"""The strings of a GGUF array, and which of them join to which: what would be slow in Python for 262k tokens.

An array of strings is bytes: of each string 8 bytes of its length, then UTF-8. `starts` are the places of the texts,
and one place more, 8 bytes past the end.
"""
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memcpy

import numpy as np

cdef extern from *:
    """
    enum { LENGTH_BYTES = 8, MAX_JOINED = 256 };
    #define HASH_FACTOR 0x9e3779b97f4a7c15ull
    #define NEVER UINT64_MAX
    """
    enum: LENGTH_BYTES, MAX_JOINED
    const uint64_t HASH_FACTOR, NEVER


def starts_of(const uint8_t[::1] data, Py_ssize_t count):
    """Where each of `count` strings starts: int64 [count + 1]; ValueError if one goes past the end."""
    cdef uint64_t length, at = 0, end = <uint64_t>data.shape[0]
    cdef Py_ssize_t i
    out = np.empty(count + 1, np.int64)
    cdef int64_t[::1] starts = out
    for i in range(count):
        if end - at < LENGTH_BYTES:
            raise ValueError(f"string {i} lies past the end")
        memcpy(&length, &data[<Py_ssize_t>at], LENGTH_BYTES)
        at += LENGTH_BYTES
        starts[i] = <int64_t>at
        if length > end - at:
            raise ValueError(f"string {i} of {length} bytes goes past the end")
        at += length
    starts[count] = <int64_t>at + LENGTH_BYTES
    return out


cdef inline Py_ssize_t length_of(const int64_t[::1] starts, Py_ssize_t i) noexcept:
    return <Py_ssize_t>(starts[i + 1] - starts[i]) - LENGTH_BYTES


def texts_of(const uint8_t[::1] data, const int64_t[::1] starts):
    """All strings; UnicodeDecodeError, to which `index` is added, for one that is no UTF-8."""
    cdef Py_ssize_t i
    cdef const char *bytes = NULL
    texts = []
    if data.shape[0]:
        bytes = <const char *>&data[0]
    for i in range(starts.shape[0] - 1):
        try:
            texts.append(PyUnicode_DecodeUTF8(bytes + starts[i], length_of(starts, i), NULL))
        except UnicodeDecodeError as error:
            error.index = i
            raise
    return texts


def place_of(const uint8_t[::1] data, const int64_t[::1] starts, bytes text):
    """The index of a string, or −1."""
    cdef Py_ssize_t i, n = len(text)
    cdef const char *wanted = text
    for i in range(starts.shape[0] - 1):
        if length_of(starts, i) == n and memcmp(&data[<Py_ssize_t>starts[i]], wanted, <size_t>n) == 0:
            return i
    return -1


cdef class Places:
    """The index of each string but the empty one by its text, in an open-addressed table.

    The hash of a text is Σ byte · HASH_FACTOR^(bytes behind it), so that those of all its beginnings and ends follow
    from one another.
    """
    cdef const uint8_t[::1] data
    cdef const int64_t[::1] starts
    cdef int32_t *table  # index + 1, or 0
    cdef uint64_t mask

    def __cinit__(self, const uint8_t[::1] data, const int64_t[::1] starts):
        cdef Py_ssize_t i, n = starts.shape[0] - 1
        cdef uint64_t slot
        self.data, self.starts, self.mask = data, starts, 15
        while self.mask < <uint64_t>n * 2:
            self.mask = self.mask * 2 + 1
        self.table = <int32_t *>calloc(self.mask + 1, sizeof(int32_t))
        if self.table == NULL:
            raise MemoryError
        for i in range(n):
            if length_of(starts, i) == 0:  # there may be many, and nobody asks for them
                continue
            slot = self.slot(self.hash(starts[i], length_of(starts, i)))
            while self.table[slot]:
                slot = (slot + 1) & self.mask
            self.table[slot] = <int32_t>(i + 1)

    def __dealloc__(self):
        free(self.table)

    cdef uint64_t slot(self, uint64_t hash) noexcept:
        return (hash ^ hash >> 29) * HASH_FACTOR >> 20 & self.mask

    cdef uint64_t hash(self, int64_t start, Py_ssize_t n_bytes) noexcept:
        cdef uint64_t hash = 0
        cdef Py_ssize_t i
        for i in range(n_bytes):
            hash = hash * HASH_FACTOR + self.data[start + i] + 1
        return hash

    cdef int32_t find(self, uint64_t hash, int64_t start, Py_ssize_t n_bytes) noexcept:
        """The index of the text at a place, or −1."""
        cdef uint64_t slot = self.slot(hash)
        cdef int32_t i
        while self.table[slot]:
            i = self.table[slot] - 1
            if length_of(self.starts, i) == n_bytes and memcmp(&self.data[self.starts[i]], &self.data[start],
                                                               <size_t>n_bytes) == 0:
                return i
            slot = (slot + 1) & self.mask
        return -1


cdef class Joiner:
    """Joins the characters of one text as an encoder does: again and again the two neighbours that make the best token.

    What lies around a text changes neither which of its parts are joined nor when, as long as none is joined to the
    outside. So the two parts that are joined last, if it becomes one, are the only ones that ever make this text.
    """
    cdef Places places
    cdef int32_t[::1] rank             # of each string, the best first
    cdef uint64_t[::1] factors         # HASH_FACTOR^i
    cdef uint64_t[MAX_JOINED + 1] hashes   # of the first i bytes of the text
    cdef int[MAX_JOINED + 1] ends      # where the parts end; ends[0] = 0 is before the first
    cdef int32_t[MAX_JOINED] parts     # their indices, or −1
    cdef int32_t[MAX_JOINED] wholes    # of each part but the last: what it makes with the next one, or −1
    cdef uint64_t[MAX_JOINED] keys     # and how good that is: the rank, then the length of the part

    cdef int32_t find(self, int64_t start, int first, int end) noexcept:
        cdef uint64_t hash = self.hashes[end] - self.hashes[first] * self.factors[end - first]
        return self.places.find(hash, start + first, end - first)

    cdef void look(self, int64_t start, int i) noexcept:
        """Finds what parts i and i + 1 make."""
        self.keys[i], self.wholes[i] = NEVER, -1
        if self.parts[i] >= 0 and self.parts[i + 1] >= 0:
            self.wholes[i] = self.find(start, self.ends[i], self.ends[i + 2])
            if self.wholes[i] >= 0:
                self.keys[i] = <uint64_t>self.rank[self.wholes[i]] << 32 | <uint64_t>(self.ends[i + 1] - self.ends[i])

    cdef int last_cut(self, int64_t start, int n_bytes) noexcept:
        """Where the two parts meet that are joined last; 0 if the text does not become one."""
        cdef const uint8_t[::1] data = self.places.data
        cdef int i, best, n = 0, cut = 0
        self.hashes[0] = 0
        self.ends[0] = 0
        for i in range(n_bytes):
            self.hashes[i + 1] = self.hashes[i] * HASH_FACTOR + data[start + i] + 1
            if i + 1 == n_bytes or data[start + i + 1] & 0xC0 != 0x80:
                self.ends[n + 1] = i + 1
                self.parts[n] = self.find(start, self.ends[n], i + 1)
                n += 1
        for i in range(n - 1):
            self.look(start, i)
        while n > 1:
            best = 0
            for i in range(1, n - 1):
                if self.keys[i] < self.keys[best]:
                    best = i
            if self.keys[best] == NEVER:
                return 0
            cut = self.ends[best + 1]
            n -= 1
            self.parts[best] = self.wholes[best]
            for i in range(best + 1, n):
                self.parts[i] = self.parts[i + 1]
                self.ends[i] = self.ends[i + 1]
                self.keys[i - 1], self.wholes[i - 1] = self.keys[i], self.wholes[i]
            self.ends[n] = n_bytes
            if best > 0:
                self.look(start, best - 1)
            if best < n - 1:
                self.look(start, best)
        return cut


def pairs_of(const uint8_t[::1] data, const int64_t[::1] starts, const int64_t[::1] order):
    """The indices of the two strings that an encoder joins to a third one: int32 [n, 2].

    In the order of the third, by `order`; each comes once at most, but those of more than MAX_JOINED bytes, of which
    every two strings that make them are given, by where they are cut.
    """
    cdef Joiner joiner = Joiner()
    cdef Places places = Places(data, starts)
    cdef uint64_t whole, left_hash
    cdef Py_ssize_t at, cut, length, first, i, n = 0
    cdef int64_t start
    cdef int32_t left, right
    found = np.empty((max(1024, 2 * order.shape[0]), 2), np.int32)
    cdef int32_t[:, ::1] pairs = found
    joiner.places = places
    joiner.rank = np.empty(order.shape[0], np.int32)
    joiner.factors = np.ones(longest(starts) + 1, np.uint64)
    for at in range(order.shape[0]):
        joiner.rank[order[at]] = <int32_t>at
    for at in range(1, joiner.factors.shape[0]):
        joiner.factors[at] = joiner.factors[at - 1] * HASH_FACTOR
    for at in range(order.shape[0]):
        start, length = starts[order[at]], length_of(starts, order[at])
        whole, left_hash, first = places.hash(start, length), 0, n
        for cut in range(1, length):
            left_hash = left_hash * HASH_FACTOR + data[start + cut - 1] + 1
            if data[start + cut] & 0xC0 == 0x80:  # within a character
                continue
            left = places.find(left_hash, start, cut)
            if left < 0:
                continue
            right = places.find(whole - left_hash * joiner.factors[length - cut], start + cut, length - cut)
            if right < 0:
                continue
            if n == pairs.shape[0]:
                found = np.resize(found, (2 * n, 2))
                pairs = found
            pairs[n, 0], pairs[n, 1] = left, right
            n += 1
        if n - first > 1 and length <= MAX_JOINED:
            cut = joiner.last_cut(start, <int>length)
            for i in range(first, n):
                if length_of(starts, pairs[i, 0]) == cut:
                    pairs[first, 0], pairs[first, 1] = pairs[i, 0], pairs[i, 1]
            n = first + (cut > 0)
    return found[:n]


def joined(list texts, const int32_t[:, ::1] pairs):
    """[(texts[left], texts[right]), ...]."""
    cdef Py_ssize_t i
    return [(texts[pairs[i, 0]], texts[pairs[i, 1]]) for i in range(pairs.shape[0])]


cdef Py_ssize_t longest(const int64_t[::1] starts) noexcept:
    cdef Py_ssize_t i, most = 0
    for i in range(starts.shape[0] - 1):
        most = max(most, length_of(starts, i))
    return most
