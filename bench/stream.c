/* How fast kernels pass over panels, on one core: in the nearest caches, and over 256 MiB of memory.

       bash bench/c.sh stream [FORMAT,...] [ISA,...] [ROWS,...]

   GMAC/s and GB/s of panels; the best of many turns near, the median of nine from memory. First the roof of one core.
   From memory both ways, as processors are asked for it ahead and as those are that lead streams themselves ("led"):
   runtime/cpu.c says which do. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "../ext/kernels/ahead.h"
#include "../ext/kernels/kernels.h"

enum { N_COLUMNS = 2048, NEAR_BYTES = 400000, TURNS = 9 };
static const size_t N_BYTES = (size_t)256 << 20, HUGE_PAGE = (size_t)2 << 20;

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static bool is_among(const char *name, const char *list)
{
    const size_t n = strlen(name);
    for (const char *at = list; *list && (at = strstr(at, name)); at += n)
        if ((at == list || at[-1] == ',') && (at[n] == ',' || !at[n]))
            return true;
    return !*list;
}

static int by_size(const void *a, const void *b)
{
    return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}

/* Any bits, but scales: every second byte is the upper one of a small f16 or f32. */
static uint8_t *make_panels(void)
{
    uint8_t *memory = mmap(NULL, N_BYTES + HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        exit(1);
    memory += HUGE_PAGE - (uintptr_t)memory % HUGE_PAGE;
    madvise(memory, N_BYTES, MADV_HUGEPAGE);
    for (size_t i = 0; i < N_BYTES; i++)
        memory[i] = i % 2 ? 0x2c : (uint8_t)(i * 2654435761u >> 24);
    return memory;
}

static void measure(matmul_fn *multiply, size_t stride, const uint8_t *panels, const struct Activation *x,
                    int32_t n_rows, float *out)
{
    const int32_t n_near = stride > NEAR_BYTES / 4 ? 4 : (int32_t)(NEAR_BYTES / stride) / 4 * 4,
                  n_all = (int32_t)(N_BYTES / stride) / 4 * 4;
    double near = 1e9, all[2][TURNS];
    for (int turn = 0; turn < 400; turn++) {
        double begun = seconds();
        multiply(panels, stride, n_near, N_COLUMNS, x, 0, n_rows, out, (size_t)n_all * LANES);
        double took = seconds() - begun;
        near = took < near ? took : near;
    }
    const bool leads = hardware_leads;
    for (int turn = 0; turn < 2 * TURNS; turn++) {
        double begun = seconds();
        hardware_leads = turn % 2;
        multiply(panels, stride, n_all, N_COLUMNS, x, 0, n_rows, out, (size_t)n_all * LANES);
        all[turn % 2][turn / 2] = seconds() - begun;
    }
    hardware_leads = leads;
    const double macs = 1e-9 * n_rows * LANES * N_COLUMNS, bytes = 1e-9 * (double)stride;
    printf("%d rows   near %6.1f GMAC/s %6.1f GB/s", n_rows, macs * n_near / near, bytes * n_near / near);
    for (int led = 0; led < 2; led++) {
        qsort(all[led], TURNS, sizeof *all[led], by_size);
        const double far = all[led][TURNS / 2];
        printf("   %s %6.1f GMAC/s %5.1f GB/s", led ? "led" : "asked", macs * n_all / far, bytes * n_all / far);
    }
    printf("\n");
}

int main(int argc, char **argv)
{
    const char *names = argc > 1 ? argv[1] : "q8,q4,q4m,q4k,q6k,bf16", *isas = argc > 2 ? argv[2] : "";
    const char *rows = argc > 3 ? argv[3] : "1,4,8";
    static float values[TILE_ROWS * N_COLUMNS], scales[TILE_ROWS * N_COLUMNS / GROUP];
    static int8_t q[TILE_ROWS * N_COLUMNS];
    static int32_t minus_sums[TILE_ROWS * N_COLUMNS / GROUP];
    const struct Activation x = { values, q, scales, minus_sums, N_COLUMNS, 1 };
    const uint8_t *panels = make_panels();
    float *out = malloc(N_BYTES / format_panel_bytes(&formats[FORMAT_Q4], N_COLUMNS) * LANES * TILE_ROWS * sizeof *out);
    for (int isa = ISA_PORTABLE; isa < N_ISAS; isa++) {
        if (!isa_available(isa) || !is_among(kernels_for(isa)->isa, isas))
            continue;
        double begun = seconds();
        volatile float sum = kernels_for(isa)->read_sum((const float *)panels, N_BYTES / sizeof(float));
        (void)sum;
        printf("%-13s read_sum %.1f GB/s\n", kernels_for(isa)->isa, 1e-9 * (double)N_BYTES / (seconds() - begun));
        for (int f = 0; f < N_FORMATS; f++)
            for (char n[2] = "1"; n[0] <= '8' && is_among(formats[f].name, names); n[0]++)
                if (is_among(n, rows)) {
                    printf("%-13s %-6s", kernels_for(isa)->isa, formats[f].name);
                    measure(kernels_matmul(kernels_for(isa), formats[f].id), format_panel_bytes(&formats[f], N_COLUMNS),
                            panels, &x, n[0] - '0', out);
                }
    }
    return 0;
}
