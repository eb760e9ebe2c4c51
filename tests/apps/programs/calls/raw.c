/* System calls by number: each is made by the C function of its name, by syscall(), and is to come to the same; where the two
 * differ in the kernel, each is shown. */

#include "calls.h"

#include <sys/mman.h>
#include <sys/sendfile.h>

/* glibc gives it to nobody. */
struct kernel_mask {
    const void *set;
    size_t len;
};

static struct connection c;

static void offer(const char *text)
{
    send_text(c.client, text);
    struct pollfd p = {.fd = c.server, .events = POLLIN};
    must(poll(&p, 1, PATIENCE_MS));
}

/* Shows both; a number of bytes or descriptors, or an error. */
#define both(what, by_name, by_number)                                                                                 \
    do {                                                                                                               \
        show(what, by_name);                                                                                           \
        show(what " by number", by_number);                                                                            \
    } while (0)
#define both_offered(text, what, by_name, by_number)                                                                   \
    do {                                                                                                               \
        offer(text);                                                                                                   \
        show(what, by_name);                                                                                           \
        offer(text);                                                                                                   \
        show(what " by number", by_number);                                                                            \
    } while (0)

static void raw_bytes(void)
{
    c = linked();
    char text[20] = {0};
    struct iovec v = {text, 5};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};
    struct mmsghdr mm = {.msg_hdr = m};
    both_offered("12345", "read", read(c.server, text, 5), syscall(SYS_read, c.server, text, 5));
    both_offered("12345", "readv", readv(c.server, &v, 1), syscall(SYS_readv, c.server, &v, 1));
    both_offered("12345", "preadv2", preadv2(c.server, &v, 1, -1, 0), syscall(SYS_preadv2, c.server, &v, 1, -1L, 0L, 0));
    both_offered("12345", "preadv2, do not wait", preadv2(c.server, &v, 1, -1, RWF_NOWAIT),
                 syscall(SYS_preadv2, c.server, &v, 1, -1L, -1L, RWF_NOWAIT));
    both("preadv2, nothing there", preadv2(c.server, &v, 1, -1, RWF_NOWAIT),
         syscall(SYS_preadv2, c.server, &v, 1, -1L, 0L, RWF_NOWAIT));
    both("preadv2, place", preadv2(c.server, &v, 1, 0, 0), syscall(SYS_preadv2, c.server, &v, 1, 0L, 0L, 0));
    both("preadv2, flags", preadv2(c.server, &v, 1, -1, 0x4000), syscall(SYS_preadv2, c.server, &v, 1, -1L, 0L, 0x4000));
    both("preadv", preadv(c.server, &v, 1, 0), syscall(SYS_preadv, c.server, &v, 1, 0L, 0L));
    both("pread", pread(c.server, text, 5, 0), syscall(SYS_pread64, c.server, text, 5, 0));
    both_offered("12345", "recvfrom", recvfrom(c.server, text, 5, 0, NULL, NULL),
                 syscall(SYS_recvfrom, c.server, text, 5, 0, NULL, NULL));
    both_offered("12345", "recvmsg", recvmsg(c.server, &m, 0), syscall(SYS_recvmsg, c.server, &m, 0));
    struct timespec time = {5, 0}, raw_time = {5, 0};
    both_offered("12345", "recvmmsg", recvmmsg(c.server, &mm, 1, 0, &time),
                 syscall(SYS_recvmmsg, c.server, &mm, 1, 0, &raw_time));
    printf("time left: %d %d\n", time.tv_sec < 5, raw_time.tv_sec < 5);
    both("write", write(c.client, text, 5), syscall(SYS_write, c.client, text, 5));
    both("writev", writev(c.client, &v, 1), syscall(SYS_writev, c.client, &v, 1));
    both("pwritev2", pwritev2(c.client, &v, 1, -1, 0), syscall(SYS_pwritev2, c.client, &v, 1, -1L, 0L, 0));
    both("pwritev2, place", pwritev2(c.client, &v, 1, 3, 0), syscall(SYS_pwritev2, c.client, &v, 1, 3L, 0L, 0));
    both("pwritev", pwritev(c.client, &v, 1, 0), syscall(SYS_pwritev, c.client, &v, 1, 0L, 0L));
    both("sendto", sendto(c.client, text, 5, 0, NULL, 0), syscall(SYS_sendto, c.client, text, 5, 0, NULL, 0));
    both("sendmsg", sendmsg(c.client, &m, 0), syscall(SYS_sendmsg, c.client, &m, 0));
    both("sendmmsg", sendmmsg(c.client, &mm, 1, 0), syscall(SYS_sendmmsg, c.client, &mm, 1, 0));
    int file = must(memfd_create("file", 0));
    must(write(file, "12345", 5));
    off_t offset = 0, raw_offset = 0;
    both("sendfile", sendfile(c.client, file, &offset, 5), syscall(SYS_sendfile, c.client, file, &raw_offset, 5));
    printf("offsets: %ld %ld\n", (long)offset, (long)raw_offset);
    int pipes[2];
    must(pipe(pipes));
    both("tee", tee(pipes[0], c.client, 5, SPLICE_F_NONBLOCK),
         syscall(SYS_tee, pipes[0], c.client, 5, SPLICE_F_NONBLOCK));
    both("vmsplice", vmsplice(c.client, &v, 1, 0), syscall(SYS_vmsplice, c.client, &v, 1, 0));
    both("copy_file_range", copy_file_range(file, NULL, c.client, NULL, 5, 0),
         syscall(SYS_copy_file_range, file, NULL, c.client, NULL, 5, 0));
    /* A count that is wider than the C function's. */
    show("readv, wide", syscall(SYS_readv, c.server, &v, 1L << 32 | 1));
    show("writev, wide", syscall(SYS_writev, c.client, &v, 1L << 32 | 1));
    char all[200];
    set_nonblocking(c.server, true);
    size_t done = 0;
    for (ssize_t n; done < 70 && (n = recv(c.server, all, sizeof all, 0)) != 0;)
        done += n > 0 ? n : 0;
    show("received", done);
    set_nonblocking(c.server, false);
    exchange(c);
}

static void raw_options(void)
{
    c = linked();
    int value = 0, raw_value = 0;
    socklen_t len = 4, raw_len = 4;
    both("setsockopt", setsockopt(c.server, SOL_SOCKET, SO_KEEPALIVE, &(int){1}, 4),
         syscall(SYS_setsockopt, c.server, SOL_SOCKET, SO_KEEPALIVE, &(int){1}, 4));
    both("getsockopt", getsockopt(c.server, SOL_SOCKET, SO_ERROR, &value, &len),
         syscall(SYS_getsockopt, c.server, SOL_SOCKET, SO_ERROR, &raw_value, &raw_len));
    printf("%d %d, %u %u\n", value, raw_value, len, raw_len);
    offer("12345");
    both("ioctl", ioctl(c.server, FIONREAD, &value), syscall(SYS_ioctl, c.server, FIONREAD, &raw_value));
    printf("%d %d\n", value, raw_value);
    show_text(c.server, 5);
    int name[8], raw_name[8];
    len = raw_len = sizeof name;
    both("getpeername", getpeername(c.server, (struct sockaddr *)name, &len),
         syscall(SYS_getpeername, c.server, raw_name, &raw_len));
    both("getsockname", getsockname(c.server, (struct sockaddr *)name, &len),
         syscall(SYS_getsockname, c.server, raw_name, &raw_len));
    printf("the same: %d\n", memcmp(name, raw_name, 16) == 0 && len == raw_len);
    show("fcntl", syscall(SYS_fcntl, c.server, F_SETFL, O_NONBLOCK));
    both("recv", recv(c.server, &value, 1, 0), syscall(SYS_recvfrom, c.server, &value, 1, 0, NULL, NULL));
    both("fcntl", fcntl(c.server, F_SETFL, 0), syscall(SYS_fcntl, c.server, F_SETFL, 0));
    exchange(c);
}

static void raw_descriptors(void)
{
    c = linked();
    int listener = listener_on("127.0.0.1");
    socklen_t len;
    struct sockaddr_storage to = address_of(listener, "127.0.0.1", &len);
    int client = must(syscall(SYS_socket, AF_INET, SOCK_STREAM, 0));
    show("connect", syscall(SYS_connect, client, &to, len));
    show("connect again", syscall(SYS_connect, client, &to, len));
    int server = must(syscall(SYS_accept4, listener, NULL, NULL, 0));
    struct connection d = {client, server};
    warm(d);
    int copy = must(syscall(SYS_dup, d.client));
    must(syscall(SYS_dup3, d.client, 100, O_CLOEXEC));
    int third = must(syscall(SYS_fcntl, d.client, F_DUPFD_CLOEXEC, 50));
    show("third", third);
    exchange((struct connection){copy, d.server});
    exchange((struct connection){100, d.server});
    exchange((struct connection){third, d.server});
    show("close", syscall(SYS_close, d.client));
    show("close again", syscall(SYS_close, d.client));
    exchange((struct connection){third, d.server});
    show("close_range", syscall(SYS_close_range, 100, 100, 0));
    show("close again", syscall(SYS_close, 100));
    show("shutdown", syscall(SYS_shutdown, third, SHUT_WR));
    char byte;
    show("end", recv(d.server, &byte, 1, 0));
    exchange(c);
}

/* Whether the remaining time was told: it is less than before. */
static const char *time_left(struct timespec time)
{
    return time.tv_sec < PATIENCE_MS / 1000 ? "told" : "not told";
}

static void raw_waits(void)
{
    c = linked();
    sigset_t none;
    sigemptyset(&none);
    struct kernel_mask good = {&none, 8}, bad = {&none, 128}, no_set = {NULL, 128};
    const struct timespec limit = {PATIENCE_MS / 1000, 0};
    fd_set set;
    int epoll = must(epoll_create1(0));
    struct epoll_event event = {.events = EPOLLIN};
    must(epoll_ctl(epoll, EPOLL_CTL_ADD, c.server, &event));
    struct pollfd p = {.fd = c.server, .events = POLLIN};
    struct timespec time;
    struct timeval small;
#define fresh(value)                                                                                                   \
    ({                                                                                                                 \
        FD_ZERO(&set);                                                                                                 \
        FD_SET(c.server, &set);                                                                                        \
        time = value;                                                                                                  \
    })
    /* Nothing is there: each waits for its time. */
    const struct timespec soon = {0, 20000000};
    fresh(soon);
    show("pselect6, in vain", syscall(SYS_pselect6, c.server + 1, &set, NULL, NULL, &time, &good));
    printf("left: %ld.%09ld, set: %d\n", (long)time.tv_sec, time.tv_nsec, FD_ISSET(c.server, &set));
    fresh(soon);
    show("ppoll, in vain", syscall(SYS_ppoll, &p, 1, &time, &none, 8));
    printf("left: %ld.%09ld\n", (long)time.tv_sec, time.tv_nsec);
    small = (struct timeval){0, 20000};
    fresh(soon);
#ifdef SYS_select
    show("select, in vain", syscall(SYS_select, c.server + 1, &set, NULL, NULL, &small));
#else
    small = (struct timeval){0, 0};
    show("select, in vain", 0);
#endif
    printf("left: %ld.%06ld\n", (long)small.tv_sec, (long)small.tv_usec);
    show("epoll_pwait, in vain", syscall(SYS_epoll_pwait, epoll, &event, 1, 20, &none, 8));
    show("epoll_pwait2, in vain", syscall(SYS_epoll_pwait2, epoll, &event, 1, &soon, &none, 8));
    /* Something comes. */
    offer("x");
    fresh(limit);
    show("pselect6", syscall(SYS_pselect6, c.server + 1, &set, NULL, NULL, &time, &good));
    printf("%s, set: %d\n", time_left(time), FD_ISSET(c.server, &set));
    fresh(limit);
    show("pselect6, no mask", syscall(SYS_pselect6, c.server + 1, &set, NULL, NULL, &time, NULL));
    fresh(limit);
    show("pselect6, no set", syscall(SYS_pselect6, c.server + 1, &set, NULL, NULL, &time, &no_set));
    fresh(limit);
    show("pselect6, size", syscall(SYS_pselect6, c.server + 1, &set, NULL, NULL, &time, &bad));
    printf("%s\n", time_left(time));
    fresh(limit);
    show("pselect6, mask", syscall(SYS_pselect6, c.server + 1, &set, NULL, NULL, &time, (void *)8));
    show("pselect6, time", syscall(SYS_pselect6, c.server + 1, &set, NULL, NULL, (void *)8, NULL));
    fresh(limit);
    show("pselect", pselect(c.server + 1, &set, NULL, NULL, &time, &none));
    printf("%s\n", time_left(time));
    fresh(((struct timespec){0, 1000000000}));
    show("pselect6, no time", syscall(SYS_pselect6, c.server + 1, &set, NULL, NULL, &time, NULL));
    show("pselect6, less than no descriptors", syscall(SYS_pselect6, -1, NULL, NULL, NULL, NULL, NULL));
    fresh(limit);
    show("ppoll", syscall(SYS_ppoll, &p, 1, &time, &none, 8));
    printf("%s\n", time_left(time));
    fresh(limit);
    show("ppoll, size", syscall(SYS_ppoll, &p, 1, &time, &none, 128));
    printf("%s\n", time_left(time));
    show("ppoll, no set", syscall(SYS_ppoll, &p, 1, &time, NULL, 128));
    show("ppoll, mask", syscall(SYS_ppoll, &p, 1, &time, (void *)8, 8));
    show("ppoll, time", syscall(SYS_ppoll, &p, 1, (void *)8, NULL, 8));
    fresh(limit);
    show("ppoll by name", ppoll(&p, 1, &time, &none));
    printf("%s\n", time_left(time));
    show("epoll_pwait", syscall(SYS_epoll_pwait, epoll, &event, 1, PATIENCE_MS, &none, 8));
    show("epoll_pwait, size", syscall(SYS_epoll_pwait, epoll, &event, 1, PATIENCE_MS, &none, 128));
    show("epoll_pwait, no set", syscall(SYS_epoll_pwait, epoll, &event, 1, PATIENCE_MS, NULL, 128));
    show("epoll_pwait, mask", syscall(SYS_epoll_pwait, epoll, &event, 1, PATIENCE_MS, (void *)8, 8));
    show("epoll_pwait2", syscall(SYS_epoll_pwait2, epoll, &event, 1, &limit, &none, 8));
    show("epoll_pwait2, size", syscall(SYS_epoll_pwait2, epoll, &event, 1, &limit, &none, 128));
    show("epoll_pwait2, time", syscall(SYS_epoll_pwait2, epoll, &event, 1, (void *)8, NULL, 8));
#ifdef SYS_poll
    show("poll", syscall(SYS_poll, &p, 1, PATIENCE_MS));
    show("epoll_wait", syscall(SYS_epoll_wait, epoll, &event, 1, PATIENCE_MS));
    small = (struct timeval){PATIENCE_MS / 1000, 0};
    fresh(limit);
    show("select", syscall(SYS_select, c.server + 1, &set, NULL, NULL, &small));
    show("select, time", syscall(SYS_select, c.server + 1, &set, NULL, NULL, (void *)8));
    printf("%d\n", small.tv_sec < PATIENCE_MS / 1000);
#endif
    show_text(c.server, 1);
    exchange(c);
}

/* A signal whose handler runs in the middle: how much is left is told then, too. */
static void on_signal(int signal)
{
    (void)signal;
}

static void raw_waits_interrupted(void)
{
    c = linked();
    struct sigaction action = {.sa_handler = on_signal};
    sigset_t blocked, none;
    sigemptyset(&none);
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR1);
    must(sigaction(SIGUSR1, &action, NULL));
    must(sigprocmask(SIG_BLOCK, &blocked, NULL));
    struct kernel_mask mask = {&none, 8};
    struct pollfd p = {.fd = c.server, .events = POLLIN};
    fd_set set;
    FD_ZERO(&set);
    FD_SET(c.server, &set);
    struct timespec time = {PATIENCE_MS / 1000, 0};
    raise(SIGUSR1);
    show("pselect6", syscall(SYS_pselect6, c.server + 1, &set, NULL, NULL, &time, &mask));
    printf("%s\n", time_left(time));
    time.tv_sec = PATIENCE_MS / 1000;
    raise(SIGUSR1);
    show("ppoll", syscall(SYS_ppoll, &p, 1, &time, &none, 8));
    printf("%s\n", time_left(time));
    exchange(c);
}

const struct test_case raw_cases[] = {
    {"raw_bytes", raw_bytes},
    {"raw_options", raw_options},
    {"raw_descriptors", raw_descriptors},
    {"raw_waits", raw_waits},
    {"raw_waits_interrupted", raw_waits_interrupted},
    {0},
};
