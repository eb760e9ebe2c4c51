/* A program with one thread, and an allocator with one lock that no fork waits for, as the runtimes of some sanitizers have:
 * `unguarded CHILDREN` forks while connections begin and end, and its children allocate. */

#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define MESSAGE 64
#define ROUNDS 200

void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);
void __libc_free(void *);

static atomic_flag locked = ATOMIC_FLAG_INIT;

static void lock(void)
{
    while (atomic_flag_test_and_set(&locked))
        sched_yield();
    /* A thread that is not the program's holds it for most of its time. */
    if (gettid() != getpid())
        for (int i = 0; i < 50; i++)
            sched_yield();
}

static void *released(void *result)
{
    atomic_flag_clear(&locked);
    return result;
}

void *malloc(size_t size)
{
    lock();
    return released(__libc_malloc(size));
}

void *calloc(size_t count, size_t size)
{
    lock();
    return released(__libc_calloc(count, size));
}

void *realloc(void *old, size_t size)
{
    lock();
    return released(__libc_realloc(old, size));
}

void *memalign(size_t alignment, size_t size)
{
    lock();
    return released(__libc_memalign(alignment, size));
}

void *aligned_alloc(size_t alignment, size_t size)
{
    return memalign(alignment, size);
}

int posix_memalign(void **result, size_t alignment, size_t size)
{
    *result = memalign(alignment, size);
    return *result ? 0 : ENOMEM;
}

void free(void *old)
{
    lock();
    __libc_free(old);
    released(NULL);
}

static void check(int right, const char *what)
{
    if (!right) {
        perror(what);
        _exit(3);
    }
}

/* Sends each message back. */
static void serve(int listener)
{
    char bytes[MESSAGE];
    int fd = accept(listener, NULL, NULL);
    check(fd >= 0, "accept");
    while (recv(fd, bytes, sizeof bytes, MSG_WAITALL) == sizeof bytes)
        check(send(fd, bytes, sizeof bytes, 0) == sizeof bytes, "send");
    close(fd);
}

static void talk(int fd)
{
    char sent[MESSAGE], received[MESSAGE];
    for (int round = 0; round < ROUNDS; round++) {
        memset(sent, round, sizeof sent);
        check(send(fd, sent, sizeof sent, 0) == sizeof sent, "send");
        check(recv(fd, received, sizeof received, MSG_WAITALL) == sizeof received, "recv");
        check(memcmp(sent, received, sizeof sent) == 0, "the same bytes");
    }
}

static pid_t forks(void)
{
    pid_t child = fork();
    check(child >= 0, "fork");
    if (child == 0) {
        /* One that finds the lock held would try for ever. */
        alarm(60);
        free(malloc(100));
    }
    return child;
}

static int ends_well(pid_t child)
{
    int status;
    check(waitpid(child, &status, 0) == child, "waitpid");
    return status == 0;
}

int main(int count, char **arguments)
{
    int children = count > 1 ? atoi(arguments[1]) : 0, right = 0;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof address;
    check(bind(listener, (struct sockaddr *)&address, len) == 0 && listen(listener, 8) == 0, "listen");
    getsockname(listener, (struct sockaddr *)&address, &len);
    for (int i = 0; i < children; i++) {
        pid_t server = forks();
        if (server == 0) {
            serve(listener);
            exit(0);
        }
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        check(connect(fd, (struct sockaddr *)&address, len) == 0, "connect");
        talk(fd);
        /* The library's thread ends what the connection had while the next child is born. */
        close(fd);
        pid_t idle = forks();
        if (idle == 0)
            _exit(0);
        right += ends_well(idle) + ends_well(server);
    }
    printf("%d of %d children were right\n", right, 2 * children);
    return 0;
}
