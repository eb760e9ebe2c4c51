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
        else
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
    long found = call();
    printf("%ld %s\n", found, found < 0 ? strerror(errno) : "");
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
    } else if (strcmp(name, "rounds") == 0) {
        with("abcd", ROUNDS, receive_rounds);
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
