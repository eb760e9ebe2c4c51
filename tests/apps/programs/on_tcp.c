/* Calls whose first attempt the kernel makes only in part, or not at all, on a connection that stays on TCP: both ends in one
 * process. A thread makes the other end's calls once the first one sleeps. Prints what each call returns. */

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "exchange.h"

#define LONG (4 << 20)
#define ROUNDS 200

static int ends[2];
static pid_t first;
static const char *other;
static int other_count;
/* The first end's call has returned. */
static volatile int over;
static char buffer[LONG];

static int is_asleep(pid_t thread)
{
    char name[64], text[512];
    snprintf(name, sizeof name, "/proc/self/task/%d/stat", thread);
    int file = open(name, O_RDONLY);
    ssize_t length = read(file, text, sizeof text - 1);
    close(file);
    text[length > 0 ? length : 0] = 0;
    const char *end = strrchr(text, ')');
    return end && end[2] == 'S';
}

static volatile sig_atomic_t handled;

static void ignore(int number)
{
    handled = number;
}

/* A handler runs in the thread that sleeps, which then has nothing to receive for a while: it sleeps on, or its call has ended. */
static void signal_and_send(void)
{
    must(syscall(SYS_tgkill, getpid(), first, SIGUSR1) == 0, "tgkill");
    while (!handled)
        sched_yield();
    while (!is_asleep(first) && !over)
        sched_yield();
    must(send(ends[1], "abcd", 4, 0) == 4, "send");
}

/* The calls of the other end, each after the first end sleeps. */
static void *calls(void *unused)
{
    for (int i = 0; i < other_count; i++) {
        while (!is_asleep(first))
            sched_yield();
        if (strcmp(other, "read all") == 0)
            for (size_t done = 0; done < LONG;)
                done += (size_t)recv(ends[1], buffer, LONG - done, 0);
        else if (strcmp(other, "read on") == 0)
            while (recv(ends[1], buffer, LONG, MSG_DONTWAIT) > 0)
                ;
        else if (strcmp(other, "signal, and send") == 0)
            signal_and_send();
        else if (strcmp(other, "close, and send") == 0) {
            must(close(ends[0]) == 0, "close");
            must(send(ends[1], "abcd", 4, 0) == 4, "send");
        } else if (strcmp(other, "shut down") == 0)
            must(shutdown(ends[0], SHUT_RD) == 0, "shutdown");
        else if (strcmp(other, "reset") == 0) {
            struct linger at_once = {.l_onoff = 1};
            must(setsockopt(ends[1], SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once) == 0, "SO_LINGER");
            must(close(ends[1]) == 0, "close");
        } else
            must(send(ends[1], other, strlen(other), 0) > 0, "send");
    }
    return unused;
}

/* What the first end's call returns beside those of the other. */
static void with(const char *what, int count, long (*call)(void))
{
    pthread_t thread;
    other = what;
    other_count = count;
    must(pthread_create(&thread, NULL, calls, NULL) == 0, "pthread_create");
    errno = 0;
    long found = call();
    int error = errno;
    over = 1;
    printf("%ld %s\n", found, found < 0 ? strerror(error) : "");
    must(pthread_join(thread, NULL) == 0, "pthread_join");
}

static long receive_some(void) { return recv(ends[0], buffer, 8, 0); }
static long receive_none(void) { return recv(ends[0], buffer, 0, 0); }
static long receive_all(void) { return recv(ends[0], buffer, 8, MSG_WAITALL); }
static long send_long(void) { return send(ends[0], buffer, LONG, 0); }
static long send_one(void) { return send(ends[0], buffer, 1, 0); }
static long receive_rounds(void)
{
    long sum = 0;
    for (int i = 0; i < ROUNDS; i++)
        sum += recv(ends[0], buffer, 4, 0);
    return sum;
}

/* In a thread that has neither made the connection nor sent. */
static void *rounds_elsewhere(void *unused)
{
    first = (pid_t)syscall(SYS_gettid);
    with("abcd", ROUNDS, receive_rounds);
    return unused;
}

static void one(const char *name)
{
    int four = 4, small = 1 << 16;
    if (strcmp(name, "low water") == 0) {
        must(setsockopt(ends[0], SOL_SOCKET, SO_RCVLOWAT, &four, sizeof four) == 0, "SO_RCVLOWAT");
        must(send(ends[1], "ab", 2, 0) == 2, "send");
        /* The kernel wakes the receiver for as many bytes as the low water mark after those that it has taken. */
        with("cdef", 1, receive_some);
    } else if (strcmp(name, "empty") == 0) {
        with("abcd", 1, receive_none);
        printf("%ld\n", (long)recv(ends[0], buffer, 8, 0));
    } else if (strcmp(name, "wait for all") == 0) {
        must(send(ends[1], "abcd", 4, 0) == 4, "send");
        with("efgh", 1, receive_all);
    } else if (strcmp(name, "long") == 0) {
        must(setsockopt(ends[0], SOL_SOCKET, SO_SNDBUF, &small, sizeof small) == 0, "SO_SNDBUF");
        with("read all", 1, send_long);
    } else if (strcmp(name, "full") == 0) {
        while (send(ends[0], buffer, LONG, MSG_DONTWAIT) > 0)
            ;
        printf("%s\n", strerror(errno));
        with("read on", 1, send_one);
    } else if (strcmp(name, "nothing") == 0) {
        long found = recv(ends[0], buffer, 8, MSG_DONTWAIT);
        printf("%ld %s\n", found, strerror(errno));
        printf("%ld\n", (long)read(ends[0], buffer, 0));
    } else if (strcmp(name, "rounds") == 0) {
        with("abcd", ROUNDS, receive_rounds);
    } else if (strcmp(name, "rounds elsewhere") == 0) {
        pthread_t thread;
        must(pthread_create(&thread, NULL, rounds_elsewhere, NULL) == 0, "pthread_create");
        must(pthread_join(thread, NULL) == 0, "pthread_join");
    } else if (strcmp(name, "interrupted") == 0 || strcmp(name, "restarted") == 0) {
        struct sigaction handles = {.sa_handler = ignore, .sa_flags = strcmp(name, "restarted") == 0 ? SA_RESTART : 0};
        must(sigaction(SIGUSR1, &handles, NULL) == 0, "sigaction");
        with("signal, and send", 1, receive_some);
    } else if (strcmp(name, "too late") == 0) {
        struct timeval some = {.tv_usec = 20000};
        must(setsockopt(ends[0], SOL_SOCKET, SO_RCVTIMEO, &some, sizeof some) == 0, "SO_RCVTIMEO");
        with("", 0, receive_some);
    } else if (strcmp(name, "closed under it") == 0) {
        with("close, and send", 1, receive_some);
    } else if (strcmp(name, "ended under it") == 0) {
        with("shut down", 1, receive_some);
    } else if (strcmp(name, "reset") == 0) {
        with("reset", 1, receive_some);
        with("", 0, receive_some);
    } else if (strcmp(name, "closed") == 0) {
        must(shutdown(ends[0], SHUT_WR) == 0, "shutdown");
        long found = send(ends[0], "a", 1, MSG_NOSIGNAL);
        printf("%ld %s\n", found, strerror(errno));
        fflush(stdout);
        send(ends[0], "a", 1, 0);
        puts("no SIGPIPE");
    } else {
        must(0, name);
    }
}

int main(int argc, char **argv)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    must(bind(listener, (struct sockaddr *)&address, len) == 0 && listen(listener, 1) == 0, "listen");
    must(getsockname(listener, (struct sockaddr *)&address, &len) == 0, "getsockname");
    ends[0] = socket(AF_INET, SOCK_STREAM, 0);
    must(connect(ends[0], (struct sockaddr *)&address, len) == 0, "connect");
    ends[1] = accept(listener, NULL, NULL);
    must(ends[1] >= 0, "accept");
    first = (pid_t)syscall(SYS_gettid);
    must(argc == 2, "usage: on_tcp CASE");
    one(argv[1]);
    return 0;
}
