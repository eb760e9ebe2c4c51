/* The state of a thread that os/deferral.rs keeps. In C because stable Rust has no thread-local variable that code can reach
 * without a function of the dynamic linker, as this model permits. */

#include <signal.h>
#include <stdint.h>

struct calls {
    uint32_t depth;
    uint64_t deferred;
    siginfo_t kept;
};

_Thread_local struct calls netacc_calls __attribute__((tls_model("initial-exec"), visibility("hidden")));
