/* The state of a thread that os/deferral.rs keeps. In C because Rust has no way to request this model of thread-local
 * storage, with which a call needs no function of the dynamic linker to find it. */

#include <signal.h>
#include <stdint.h>

struct calls {
    uint32_t depth;
    uint64_t deferred;
    siginfo_t kept;
};

static _Thread_local struct calls calls __attribute__((tls_model("initial-exec")));

struct calls *netacc_calls_of_thread(void)
{
    return &calls;
}
