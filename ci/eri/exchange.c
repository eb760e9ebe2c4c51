/* Round trips or a stream between two hosts, and what they cost both of them in processor time.
 *
 *   exchange serve ADDRESS PORT                 serves one connection after the other
 *   exchange trips ADDRESS PORT COUNT           COUNT round trips of 64 bytes, both ends blocking
 *   exchange polled ADDRESS PORT COUNT          the same, both ends polling
 *   exchange stream ADDRESS PORT COUNT          COUNT writes of 64 KiB, all of them answered by one byte at the end
 *
 * The client first does the same for WARM seconds, so that its connection may get onto a link. It prints a line of JSON:
 * microseconds of a round trip or a write, and their median; and the microseconds of processor time for each of them,
 * of the client, of the server, and of both whole hosts. A host's time is that in which its processors were not idle,
 * which the kernel counts in hundredths of a second.
 */

#include <arpa/inet.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MESSAGE 64
#define PART 65536
#define WARM 12.0

/* How both ends wait, and what the client sends. */
enum mode { TRIPS, POLLED, STREAM, MODES };
static const char *const names[MODES] = {"trips", "polled", "stream"};

/* The first bytes of a run of messages. The server measures from its first message to its last. */
struct header {
    uint32_t mode;
    uint32_t count;
};

/* The answer to a run: processor time in microseconds, of the process and of its host. */
struct spent {
    uint64_t process_us;
    uint64_t host_us;
};

static char buffer[PART];

static void must(int right, const char *what)
{
    if (!right) {
        perror(what);
        exit(2);
    }
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static struct spent spent(void)
{
    struct rusage usage;
    unsigned long long user, nice, system, idle, iowait, irq, softirq;
    FILE *stat = fopen("/proc/stat", "r");
    must(stat != NULL, "/proc/stat");
    must(fscanf(stat, "cpu %llu %llu %llu %llu %llu %llu %llu", &user, &nice, &system, &idle, &iowait, &irq,
                &softirq) == 7,
         "/proc/stat");
    fclose(stat);
    getrusage(RUSAGE_SELF, &usage);
    return (struct spent){
        .process_us = (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000000ull + usage.ru_utime.tv_usec +
                      usage.ru_stime.tv_usec,
        .host_us = (user + nice + system + irq + softirq) * 10000ull,
    };
}

static struct spent since(struct spent before)
{
    struct spent after = spent();
    return (struct spent){after.process_us - before.process_us, after.host_us - before.host_us};
}

/* Receives all of it. Returns 0 at the end of the connection. */
static int take(int connection, void *into, size_t len, enum mode mode)
{
    for (size_t done = 0; done < len;) {
        ssize_t got = recv(connection, (char *)into + done, len - done, mode == POLLED ? MSG_DONTWAIT : 0);
        if (got == 0)
            return 0;
        must(got > 0 || errno == EAGAIN || errno == EINTR, "recv");
        done += got > 0 ? got : 0;
    }
    return 1;
}

static void give(int connection, const void *from, size_t len)
{
    for (size_t done = 0; done < len;) {
        ssize_t sent = send(connection, (const char *)from + done, len - done, 0);
        must(sent > 0, "send");
        done += sent;
    }
}

static int listen_at(struct sockaddr_in *address)
{
    int listener = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    must(bind(listener, (struct sockaddr *)address, sizeof *address) == 0 && listen(listener, 8) == 0, "listen");
    puts("listening");
    fflush(stdout);
    return listener;
}

static void serve(struct sockaddr_in *address)
{
    int listener = listen_at(address);
    for (;;) {
        struct header header;
        int connection = accept(listener, NULL, NULL);
        must(connection >= 0, "accept");
        while (take(connection, &header, sizeof header, TRIPS)) {
            struct spent before = spent();
            for (uint32_t i = 0; i < header.count; i++) {
                must(take(connection, buffer, header.mode == STREAM ? PART : MESSAGE, header.mode), "a message");
                if (header.mode != STREAM)
                    give(connection, buffer, MESSAGE);
            }
            struct spent cost = since(before);
            give(connection, &cost, sizeof cost);
        }
        close(connection);
    }
}

/* A run of messages. Returns the server's cost. The time of each goes into `each`, if that is not NULL. */
static struct spent run(int connection, enum mode mode, uint32_t count, double *each)
{
    struct header header = {mode, count};
    struct spent cost;
    give(connection, &header, sizeof header);
    for (uint32_t i = 0; i < count; i++) {
        double begun = now();
        give(connection, buffer, mode == STREAM ? PART : MESSAGE);
        if (mode != STREAM)
            must(take(connection, buffer, MESSAGE, mode), "an answer");
        if (each)
            each[i] = now() - begun;
    }
    must(take(connection, &cost, sizeof cost, mode), "the cost");
    return cost;
}

static int compare(const void *one, const void *other)
{
    double a = *(const double *)one, b = *(const double *)other;
    return (a > b) - (a < b);
}

static void ask(struct sockaddr_in *address, enum mode mode, uint32_t count)
{
    int connection = socket(AF_INET, SOCK_STREAM, 0);
    must(connect(connection, (struct sockaddr *)address, sizeof *address) == 0, "connect");
    for (double until = now() + WARM; now() < until;)
        run(connection, mode, 50, NULL);
    double *each = calloc(count, sizeof *each);
    must(each != NULL && count > 0, "COUNT");
    struct spent before = spent();
    double begun = now();
    struct spent theirs = run(connection, mode, count, each);
    double took = now() - begun;
    struct spent ours = since(before);
    qsort(each, count, sizeof *each, compare);
    printf("{\"us\": %.2f, \"p50_us\": %.2f, \"client_us\": %.2f, \"server_us\": %.2f, \"client_host_us\": %.2f, "
           "\"server_host_us\": %.2f}\n",
           took * 1e6 / count, each[count / 2] * 1e6, (double)ours.process_us / count, (double)theirs.process_us / count,
           (double)ours.host_us / count, (double)theirs.host_us / count);
    close(connection);
}

int main(int argc, char **argv)
{
    must(argc >= 4, "usage: exchange serve|trips|polled|stream ADDRESS PORT [COUNT]");
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[3]))};
    must(inet_pton(AF_INET, argv[2], &address.sin_addr) == 1, "ADDRESS");
    if (strcmp(argv[1], "serve") == 0)
        serve(&address);
    for (enum mode mode = 0; mode < MODES; mode++)
        if (strcmp(argv[1], names[mode]) == 0)
            ask(&address, mode, argc > 4 ? atoi(argv[4]) : 1000);
    return 0;
}
