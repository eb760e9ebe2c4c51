/* Small programs in which the kernel's behaviour is definite: see calls.c. */
#pragma once

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

/* Too new for, or not in, the headers that are common to all. */
#include <linux/sockios.h>
#include <linux/tcp.h>

/* Long for anything on one machine, short for a test. */
#define PATIENCE_MS 10000
/* A program, or a child of it, that hangs ends after so many seconds, natively and accelerated. */
#define LONGEST_S 40

struct connection {
    int client, server;
};

struct test_case {
    const char *name;
    void (*run)(void);
};

extern const struct test_case option_cases[], connection_cases[], data_cases[], waiting_cases[], descriptor_cases[],
    unseen_cases[], zerocopy_cases[], process_cases[], ring_cases[], instance_cases[], crowd_cases[],
    liburing_cases[], aio_cases[], sandbox_cases[], multipath_cases[], pointer_cases[], handler_cases[], raw_cases[],
    order_cases[], spawn_cases[], rights_cases[], shortage_cases[], interrupt_cases[], shared_option_cases[];

/* Ends the program, with what went wrong. */
void die(const char *what) __attribute__((noreturn));
#define must(call)                                                                                                     \
    ({                                                                                                                 \
        long must_result = (long)(call);                                                                               \
        if (must_result < 0)                                                                                           \
            die(#call);                                                                                                \
        must_result;                                                                                                   \
    })

/* Prints what a call returned: a number, or the name of its error. */
void show(const char *what, long result);

/* A listening socket on a free port. `host` is an IPv4 or IPv6 address. */
int listener_on(const char *host);
/* The same of a socket that is neither bound nor connected. */
int listener_by(int fd, const char *host);
/* A socket connected to where `listener` listens. `host` as above. */
int connect_to(int listener, const char *host);
struct sockaddr_storage address_of(int listener, const char *host, socklen_t *len);
/* The connection that waits at `listener`. */
int accept_from(int listener);
struct connection connection_by(int listener, const char *host);
/* A connection over IPv4; and the same, used until it is on a link where there can be one. */
struct connection connected(void);
struct connection linked(void);
/* Bytes that the kernel has carried for a socket. */
uint64_t carried(int fd);
/* Uses a connection until both directions are on a link; at most as often as the command line says. */
void warm(struct connection c);
/* Starts another program that has the listener, uses a connection to it, and closes both. */
void use_served_elsewhere(int listener);
/* Gives helper threads time if the kernel has carried more than `before`, where there can be a link. */
void await_link(int fd, uint64_t before);
void send_all(int fd, const void *bytes, size_t len);
void receive_exactly(int fd, void *bytes, size_t len);
void send_text(int fd, const char *text);
/* Receives as much text as that, and prints it. */
void show_text(int fd, size_t len);
/* Bytes from each side to the other, checked; once, or so often. */
void exchange(struct connection c);
void exchange_often(struct connection c, int times);
void set_int(int fd, int level, int name, int value);
int get_int(int fd, int level, int name);
void set_timeout(int fd, int name, long milliseconds);
/* Writes without blocking until nothing more goes; how much went. */
size_t fill(int fd);
void set_nonblocking(int fd, bool on);

/* The second argument of the program. */
const char *rounds_text(void);

/* A system call that no library sees. */
long raw_call(long number, long a, long b, long c, long d, long e);
/* Waits until a thread of this process sleeps. */
void await_sleep(pid_t thread);
/* The same, by its open file "stat" in /proc. Opens nothing. */
void await_state_of_sleep(int stat);
pid_t thread_id(void);
