/* Counts where the library's code goes, for `library.rs`: the compiler calls the functions below at the beginning of a
 * program and at each edge between two blocks of code (SanitizerCoverage, trace-pc-guard).
 *
 * The counters are in the file that NETACC_COVERAGE names, which all processes of a fuzzer's programs map. They are not
 * exact, as threads and processes add to them without a lock. Without the variable nothing is counted. This file calls the
 * kernel itself: the C library's functions would be the hooks of the library that it is linked into. */

#ifndef __x86_64__
#error "the system calls below are those of x86-64"
#endif

#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>

/* As in library.rs. */
#define COUNTERS (1 << 18)

static uint8_t *counters;

static long call(long number, long a, long b, long c, long d, long e, long f)
{
    long result;
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = f;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}

static void map(void)
{
    const char *path = getenv("NETACC_COVERAGE");
    if (path == NULL || counters != NULL)
        return;
    long file = call(SYS_openat, AT_FDCWD, (long)path, O_RDWR | O_CLOEXEC, 0, 0, 0);
    if (file < 0)
        return;
    long mapped = call(SYS_mmap, 0, COUNTERS, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    call(SYS_close, file, 0, 0, 0, 0, 0);
    if (mapped > 0)
        counters = (uint8_t *)mapped;
}

void __sanitizer_cov_trace_pc_guard_init(uint32_t *start, uint32_t *stop)
{
    if (start == stop || *start != 0)
        return;
    uint32_t last = 0;
    for (uint32_t *guard = start; guard < stop; guard++)
        *guard = ++last < COUNTERS ? last : COUNTERS - 1;
    map();
}

void __sanitizer_cov_trace_pc_guard(uint32_t *guard)
{
    if (counters == NULL)
        return;
    uint8_t *counter = counters + *guard;
    if (*counter != UINT8_MAX)
        ++*counter;
}
