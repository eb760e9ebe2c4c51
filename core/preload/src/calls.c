/* States of a thread. First the one that os/deferral.rs keeps. In C because stable Rust has no thread-local variable that code can reach
 * without a function of the dynamic linker, as this model permits. */

#include <signal.h>
#include <stddef.h>
#include <stdint.h>

struct calls {
    uint32_t depth;
    uint64_t deferred;
    siginfo_t kept;
};

/* The calls of a thread since it was last given events: see batch.rs. */
struct batch {
    uint32_t reads;
    uint32_t writes;
    uint8_t several;
    uint8_t defers;
};

/* Those that a short call uses, in one, so that it finds them once. */
struct thread {
    /* The hazard of the thread, or null: see os/place.rs. */
    const void *hazard;
    struct batch batch;
    struct calls calls;
};

_Thread_local struct thread netacc_thread __attribute__((tls_model("initial-exec"), visibility("hidden")));

/* As in os/thread_variable.rs. */
_Static_assert(offsetof(struct thread, hazard) == 0, "HAZARD");
_Static_assert(offsetof(struct thread, batch) == 8, "BATCH");
_Static_assert(offsetof(struct thread, calls) == 24, "CALLS");

/* The stack on which the library's code runs for calls that patched code of the program makes. See hooks/patched/thread.rs. */
struct patched {
    uint64_t top;
    uint64_t low;
    int32_t left;
    uint32_t registered;
};

_Thread_local struct patched netacc_patched __attribute__((tls_model("initial-exec"), visibility("hidden")));
