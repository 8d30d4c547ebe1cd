/* Memory for weights and KV: anonymous, 2 MiB-aligned, in huge pages where the system grants them; what is left over
   at the end lies in small ones. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../rillm.h"

enum { HUGE_PAGE_BYTES = 2 << 20 };

enum Status arena_map(struct Arena *arena, size_t n_bytes)
{
    *arena = (struct Arena){ 0 };
    const size_t small_page = (size_t)sysconf(_SC_PAGESIZE);
    size_t rounded = (n_bytes + small_page - 1) / small_page * small_page;
    if (rounded < n_bytes || rounded + HUGE_PAGE_BYTES < rounded)
        return STATUS_NO_MEMORY;
    uint8_t *mapped = mmap(NULL, rounded + HUGE_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED)
        return STATUS_NO_MEMORY;
    size_t before = (HUGE_PAGE_BYTES - (uintptr_t)mapped % HUGE_PAGE_BYTES) % HUGE_PAGE_BYTES;
    if (before)
        munmap(mapped, before);
    if (before < HUGE_PAGE_BYTES)
        munmap(mapped + before + rounded, HUGE_PAGE_BYTES - before);
    arena->base = mapped + before;
    arena->n_bytes = rounded;
    const char *wish = getenv("RILLM_HUGE_PAGES");
#ifdef MADV_HUGEPAGE
    if (!wish || strcmp(wish, "0") != 0)
        arena->huge_pages = rounded > 0 && madvise(arena->base, rounded, MADV_HUGEPAGE) == 0;
#else
    (void)wish;
#endif
    return STATUS_OK;
}

void arena_unmap(struct Arena *arena)
{
    if (arena->base)
        munmap(arena->base, arena->n_bytes);
    *arena = (struct Arena){ 0 };
}
