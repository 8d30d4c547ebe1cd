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

/* Sums of the words of a line, and sums of those sums after each line, which tell the order of lines. None wraps around
   within 2^16 lines, so that damage to one or two words of a column is always found. */
uint64_t lines_checksum(const uint8_t *lines, size_t n_lines)
{
    enum { WORDS = LINE_BYTES / 4 };
    uint64_t sums[WORDS] = { 0 }, sums_of_sums[WORDS] = { 0 }, checksum = n_lines;
    for (size_t i = 0; i < n_lines; i++) {
        uint32_t line[WORDS];
        memcpy(line, lines + i * LINE_BYTES, sizeof line);
        for (int w = 0; w < WORDS; w++) {
            sums[w] += line[w];
            sums_of_sums[w] += sums[w];
        }
    }
    for (int w = 0; w < WORDS; w++) {
        checksum = checksum * 0x9e3779b97f4a7c15 + sums[w]; /* any odd number spreads what differs */
        checksum = checksum * 0x9e3779b97f4a7c15 + sums_of_sums[w];
    }
    return checksum;
}
