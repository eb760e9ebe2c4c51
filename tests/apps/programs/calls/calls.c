/* Situations in which the kernel's behaviour is definite: `calls NAME ROUNDS` prints what came of one, the same natively
 * and accelerated. ROUNDS is how often a connection is used at most until it is on a link: 0 natively. */

#include "calls.h"

static int rounds;
static const char *rounds_argument = "0";

void die(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    fflush(stdout);
    _exit(2);
}

const char *rounds_text(void)
{
    return rounds_argument;
}

void show(const char *what, long result)
{
    if (result >= 0)
        printf("%s: %ld\n", what, result);
    else
        printf("%s: %s\n", what, strerrorname_np(errno));
}

struct sockaddr_storage address_of(int listener, const char *host, socklen_t *len)
{
    struct sockaddr_storage bound, to = {0};
    socklen_t bound_len = sizeof bound;
    must(getsockname(listener, (struct sockaddr *)&bound, &bound_len));
    in_port_t port = bound.ss_family == AF_INET ? ((struct sockaddr_in *)&bound)->sin_port
                                                : ((struct sockaddr_in6 *)&bound)->sin6_port;
    if (strchr(host, ':')) {
        struct sockaddr_in6 *to6 = (struct sockaddr_in6 *)&to;
        to6->sin6_family = AF_INET6;
        to6->sin6_port = port;
        inet_pton(AF_INET6, host, &to6->sin6_addr);
        *len = sizeof *to6;
    } else {
        struct sockaddr_in *to4 = (struct sockaddr_in *)&to;
        to4->sin_family = AF_INET;
        to4->sin_port = port;
        inet_pton(AF_INET, host, &to4->sin_addr);
        *len = sizeof *to4;
    }
    return to;
}

int listener_on(const char *host)
{
    return listener_by(must(socket(strchr(host, ':') ? AF_INET6 : AF_INET, SOCK_STREAM, 0)), host);
}

int listener_by(int fd, const char *host)
{
    bool six = strchr(host, ':') != NULL;
    struct sockaddr_storage at = {.ss_family = six ? AF_INET6 : AF_INET};
    if (six)
        inet_pton(AF_INET6, host, &((struct sockaddr_in6 *)&at)->sin6_addr);
    else
        inet_pton(AF_INET, host, &((struct sockaddr_in *)&at)->sin_addr);
    must(bind(fd, (struct sockaddr *)&at, six ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in)));
    must(listen(fd, 64));
    return fd;
}

int connect_to(int listener, const char *host)
{
    socklen_t len;
    struct sockaddr_storage to = address_of(listener, host, &len);
    int fd = must(socket(to.ss_family, SOCK_STREAM, 0));
    must(connect(fd, (struct sockaddr *)&to, len));
    return fd;
}

int accept_from(int listener)
{
    return must(accept(listener, NULL, NULL));
}

struct connection connection_by(int listener, const char *host)
{
    struct connection c;
    c.client = connect_to(listener, host);
    c.server = accept_from(listener);
    return c;
}

struct connection connected(void)
{
    int listener = listener_on("127.0.0.1");
    struct connection c = connection_by(listener, "127.0.0.1");
    close(listener);
    return c;
}

struct connection linked(void)
{
    struct connection c = connected();
    warm(c);
    return c;
}

uint64_t carried(int fd)
{
    struct tcp_info info = {0};
    socklen_t len = sizeof info;
    if (raw_call(SYS_getsockopt, fd, IPPROTO_TCP, TCP_INFO, (long)&info, (long)&len) < 0)
        return 0;
    return info.tcpi_bytes_sent - info.tcpi_bytes_retrans + info.tcpi_bytes_received;
}

void await_link(int fd, uint64_t before)
{
    if (rounds > 0 && carried(fd) != before)
        usleep(2000);
}

void warm(struct connection c)
{
    for (int i = 0; i < rounds; i++) {
        uint64_t before = carried(c.client);
        char byte = 0;
        send_all(c.client, "w", 1);
        receive_exactly(c.server, &byte, 1);
        send_all(c.server, "W", 1);
        receive_exactly(c.client, &byte, 1);
        if (carried(c.client) == before)
            return;
        usleep(500);
    }
    if (rounds > 0) {
        fprintf(stderr, "no link after %d round trips\n", rounds);
        _exit(3);
    }
}

void send_all(int fd, const void *bytes, size_t len)
{
    for (size_t done = 0; done < len;)
        done += must(send(fd, (const char *)bytes + done, len - done, 0));
}

void receive_exactly(int fd, void *bytes, size_t len)
{
    for (size_t done = 0; done < len;) {
        ssize_t n = must(recv(fd, (char *)bytes + done, len - done, 0));
        if (n == 0) {
            errno = 0;
            die("end of stream");
        }
        done += n;
    }
}

void send_text(int fd, const char *text)
{
    send_all(fd, text, strlen(text));
}

void show_text(int fd, size_t len)
{
    char text[4096] = {0};
    receive_exactly(fd, text, len);
    printf("received: %s\n", text);
}

static void one_way(int from, int to)
{
    char sent[20000], received[sizeof sent];
    for (size_t i = 0; i < sizeof sent; i++)
        sent[i] = (char)(i * 31 + from);
    send_all(from, sent, sizeof sent);
    receive_exactly(to, received, sizeof received);
    if (memcmp(sent, received, sizeof sent) != 0)
        puts("other bytes arrived");
}

void exchange_often(struct connection c, int times)
{
    for (int i = 0; i < times; i++) {
        one_way(c.client, c.server);
        one_way(c.server, c.client);
    }
    puts("exchanged");
}

void exchange(struct connection c)
{
    exchange_often(c, 1);
}

void set_int(int fd, int level, int name, int value)
{
    must(setsockopt(fd, level, name, &value, sizeof value));
}

int get_int(int fd, int level, int name)
{
    int value = 0;
    socklen_t len = sizeof value;
    must(getsockopt(fd, level, name, &value, &len));
    return value;
}

void set_timeout(int fd, int name, long milliseconds)
{
    struct timeval time = {milliseconds / 1000, milliseconds % 1000 * 1000};
    must(setsockopt(fd, SOL_SOCKET, name, &time, sizeof time));
}

size_t fill(int fd)
{
    static char bytes[65536];
    size_t done = 0;
    /* A connection that comes onto a link, or leaves one whose peer takes nothing, has room again: for longer than that. So
       has one on a busy machine, once its peer's kernel has taken what is under way. */
    const int patience = rounds > 0 ? 700 : 100;
    for (int quiet = 0; quiet < patience; quiet++) {
        ssize_t n;
        while ((n = send(fd, bytes, sizeof bytes, MSG_DONTWAIT)) > 0) {
            done += n;
            quiet = 0;
        }
        if (n < 0 && errno != EAGAIN)
            die("send");
        usleep(1000);
    }
    return done;
}

void set_nonblocking(int fd, bool on)
{
    int flags = must(fcntl(fd, F_GETFL));
    must(fcntl(fd, F_SETFL, on ? flags | O_NONBLOCK : flags & ~O_NONBLOCK));
}

long raw_call(long number, long a, long b, long c, long d, long e)
{
    long result;
#if defined(__x86_64__)
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = 0;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
#elif defined(__aarch64__)
    register long x8 __asm__("x8") = number;
    register long x0 __asm__("x0") = a;
    register long x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = d;
    register long x4 __asm__("x4") = e;
    register long x5 __asm__("x5") = 0;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
    result = x0;
#endif
    if (result < 0) {
        errno = (int)-result;
        return -1;
    }
    return result;
}

pid_t thread_id(void)
{
    return (pid_t)raw_call(SYS_gettid, 0, 0, 0, 0, 0);
}

void await_state_of_sleep(int stat)
{
    for (int asleep = 0, polls = 0; asleep < 5; polls++) {
        char text[512] = {0};
        must(pread(stat, text, sizeof text - 1, 0));
        const char *state = strrchr(text, ')');
        asleep = state && state[2] == 'S' ? asleep + 1 : 0;
        if (polls > PATIENCE_MS)
            die("a thread never sleeps");
        usleep(1000);
    }
}

void await_sleep(pid_t thread)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", thread);
    int stat = must(open(path, O_RDONLY | O_CLOEXEC));
    await_state_of_sleep(stat);
    close(stat);
}

int main(int count, char **arguments)
{
    static const struct test_case *const all[] = {option_cases,     connection_cases, data_cases,    waiting_cases,
                                                  descriptor_cases, unseen_cases,     zerocopy_cases,   process_cases,
                                                  ring_cases, instance_cases, crowd_cases, liburing_cases, aio_cases,
                                                  sandbox_cases, multipath_cases, pointer_cases, handler_cases,
                                                  raw_cases, order_cases, spawn_cases, rights_cases, shortage_cases,
                                                  interrupt_cases, shared_option_cases};
    const size_t tables = sizeof all / sizeof *all;
    if (count < 2) {
        for (size_t i = 0; i < tables; i++)
            for (const struct test_case *test = all[i]; test->name; test++)
                puts(test->name);
        return 0;
    }
    if (count > 2)
        rounds_argument = arguments[2];
    rounds = atoi(rounds_argument);
    alarm(LONGEST_S);
    for (size_t i = 0; i < tables; i++)
        for (const struct test_case *test = all[i]; test->name; test++)
            if (strcmp(test->name, arguments[1]) == 0) {
                test->run();
                fflush(stdout);
                return 0;
            }
    fprintf(stderr, "no case named %s\n", arguments[1]);
    return 1;
}
