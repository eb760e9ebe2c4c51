/* The sleep on a futex, as a cancellation point of POSIX threads, which blocking calls of sockets are. A thread that is
 * cancelled unwinds from any instruction between the two changes of its cancellation type. Rust code cannot declare
 * that it may be left between any two instructions; C code without cleanups may be. */

#define _GNU_SOURCE
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

long netacc_shm_sleep(const uint32_t *word, uint32_t seen, const struct timespec *timeout)
{
    int before;
    pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &before);
    long rc = syscall(SYS_futex, word, FUTEX_WAIT, seen, timeout, NULL, 0);
    int saved = errno;
    pthread_setcanceltype(before, NULL);
    errno = saved;
    return rc;
}
