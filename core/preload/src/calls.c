/* States of a thread. First the one that os/deferral.rs keeps. In C because stable Rust has no thread-local variable that code can reach
 * without a function of the dynamic linker, as this model permits. */

#include <signal.h>
#include <stdint.h>

struct calls {
    uint32_t depth;
    uint64_t deferred;
    siginfo_t kept;
};

_Thread_local struct calls netacc_calls __attribute__((tls_model("initial-exec"), visibility("hidden")));

/* The calls of a thread since it was last given events: see batch.rs. */
struct batch {
    uint32_t reads;
    uint32_t writes;
    uint8_t several;
    uint8_t defers;
};

_Thread_local struct batch netacc_batch __attribute__((tls_model("initial-exec"), visibility("hidden")));

/* The hazard of the thread, or null: see os/place.rs. */
_Thread_local const void *netacc_hazard __attribute__((tls_model("initial-exec"), visibility("hidden")));

/* The stack on which the library's code runs for calls that patched code of the program makes. See hooks/patched/thread.rs. */
struct patched {
    uint64_t top;
    uint64_t low;
    int32_t left;
    uint32_t registered;
};

_Thread_local struct patched netacc_patched __attribute__((tls_model("initial-exec"), visibility("hidden")));
