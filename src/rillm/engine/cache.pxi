# Pages of keys and values, the caches that hold them, and whose turn it is: a part of _engine.pyx.
cdef class Page:
    """Keys and values of POSITIONS_PER_PAGE positions of the layers of one ring; caches that hold it share it."""
    cdef CPage *page
    cdef readonly size_t n_bytes

    def __dealloc__(self):
        page_release(self.page)

    @staticmethod
    cdef Page of(CPage *page, size_t n_bytes):
        wrapped = Page()
        wrapped.page = page
        wrapped.n_bytes = n_bytes
        return wrapped

    @staticmethod
    def from_bytes(const uint8_t[::1] data):
        """A new page with these contents."""
        cdef CPage *page
        check(page_create(&page, data.nbytes))
        memcpy(page_data(page), &data[0], data.nbytes)
        return Page.of(page, data.nbytes)


cdef class Turn:
    """With it, one call at a time: a second raises SessionBusy. Compiled, so that no signal comes between."""
    cdef bint is_taken

    def __enter__(self):
        if self.is_taken:
            raise errors.SessionBusy("this session is computing another call; give each thread its own")
        self.is_taken = True

    def __exit__(self, *_):
        self.is_taken = False


cdef class Cache:
    """Keys and values of one session, in pages that are taken as they are reached.

    context : positions that a row sees at most. policy : of CONTEXT_POLICIES, what happens beyond. n_keep : how many
    of the first stay to be seen. limit : positions are below it; 0: as many as there can be.
    """
    cdef CCache *cache
    cdef readonly Engine engine
    cdef RopeTable ropes
    cdef readonly int context, n_keep, limit
    cdef readonly str format, policy

    def __cinit__(self, Engine engine, str format, int32_t context, str policy="stop", int32_t n_keep=0,
                  int32_t limit=0):
        cdef CContext c_context
        c_context.length, c_context.n_keep, c_context.limit = context, n_keep, limit
        c_context.policy = <ContextPolicy><int>CONTEXT_POLICIES.index(policy)
        self.engine, self.format = engine, format
        self.context, self.policy, self.n_keep, self.limit = context, policy, n_keep, limit
        check(cache_create(&self.cache, &engine.plan, <KvFormat><int>KV_FORMATS[format], &c_context))

    def __dealloc__(self):
        cache_destroy(self.cache)

    cdef CCache *open_cache(self) except NULL:
        if self.cache == NULL:
            raise errors.SessionClosed("this session is closed")
        return self.cache

    def close(self):
        """Frees the memory now."""
        cache_destroy(self.cache)
        self.cache = NULL

    @property
    def length(self):
        return cache_length(self.open_cache())

    @property
    def n_bytes(self):
        """Of the pages it holds."""
        return cache_bytes(self.open_cache(), False)

    @property
    def n_shared_bytes(self):
        """Of those that others hold too."""
        return cache_bytes(self.open_cache(), True)

    @property
    def earliest(self):
        """From there on it can be rewound to any position, and always to 0."""
        return cache_earliest(self.open_cache())

    @property
    def page_bytes(self):
        """Of a page of each ring: rings differ by how far back their layers look."""
        cache = self.open_cache()
        return [cache_page_bytes(cache, ring) for ring in range(cache_rings(cache))]

    def set_ropes(self, RopeTable ropes):
        """Turns keys and queries by these frequencies from now on; keys already stored stay as they are."""
        cache_set_ropes(self.open_cache(), ropes.ropes)
        self.ropes = ropes

    def rewind(self, int32_t length):
        """NotHeld: a layer no longer has what a row there would see; nothing has changed."""
        check(cache_rewind(self.open_cache(), length))

    def commit(self, int32_t n):
        """The first n drafts of the last step come true."""
        cdef const int32_t[::1] path = np.arange(n + 1, dtype=np.int32)
        check(cache_commit(self.open_cache(), &path[0], n))

    def page(self, int32_t ring, int32_t number):
        """The page of positions from number · POSITIONS_PER_PAGE, or None if it is not held."""
        cdef CPage *page = cache_page(self.open_cache(), ring, number)
        return Page.of(page_retain(page), cache_page_bytes(self.cache, ring)) if page != NULL else None

    def copy_page(self, int32_t ring, int32_t number):
        """Its bytes, zeros past the length: uint8 [page_bytes[ring]]."""
        cdef uint8_t[::1] out = np.empty(cache_page_bytes(self.open_cache(), ring), np.uint8)
        if not cache_copy_page(self.cache, ring, number, &out[0]):
            raise errors.NotHeld(f"page {number} of ring {ring} is not held")
        return np.asarray(out)

    def needs(self, int32_t length):
        """(ring, page number) of all that a cache must hold to go on at `length`, in order."""
        cache = self.open_cache()
        cdef int32_t n_pages = (length + PAGE_POSITIONS - 1) // PAGE_POSITIONS
        return [(r, p) for r in range(cache_rings(cache)) for p in range(n_pages) if cache_needs(cache, r, length, p)]

    def resume(self, int32_t length, pages):
        """Goes on at `length` with pages {(ring, page number): Page}, which it shares from now on.

        ValueError: a page is not of this size. NotHeld: one that it needs is missing.
        """
        cdef Page page
        for (ring, _), page in pages.items():
            if page.n_bytes != cache_page_bytes(self.open_cache(), ring):
                raise ValueError(f"a page has {page.n_bytes} bytes, expected {self.page_bytes[ring]}")
        check(cache_rewind(self.open_cache(), 0))  # pages of its own that the new ones do not take the place of
        for (ring, number), page in pages.items():
            cache_adopt(self.open_cache(), ring, number, page.page)
        check(cache_resume(self.open_cache(), length))

    def fill_unseen(self, uint8_t byte):
        """For tests: overwrites every slot past the length."""
        cache_fill_unseen(self.open_cache(), byte)
