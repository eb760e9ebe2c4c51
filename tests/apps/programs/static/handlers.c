/* A signal handler with much on its stack sends on a connection, whatever call it has interrupted: on another one, and then on
 * the same one. With the argument "aside" the handler has a stack of its own. */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define HANDLED 2000
/* More than enough for a link. */
#define BEFORE 200
#define LARGE 8192
#define LONGEST_S 40

struct connection {
    int client, server;
};

static timer_t timer;
static volatile int runs, sent;
static int used;

static void must(int right, const char *what)
{
    if (!right) {
        perror(what);
        exit(2);
    }
}

static struct connection linked(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0), client = socket(AF_INET, SOCK_STREAM, 0);
    must(bind(listener, (struct sockaddr *)&address, len) == 0 && listen(listener, 1) == 0, "listen");
    must(getsockname(listener, (struct sockaddr *)&address, &len) == 0, "getsockname");
    must(connect(client, (struct sockaddr *)&address, len) == 0, "connect");
    int server = accept(listener, NULL, NULL);
    must(server >= 0 && close(listener) == 0, "accept");
    char byte = 'b';
    for (int i = 0; i < BEFORE; i++) {
        must(send(client, &byte, 1, 0) == 1 && recv(server, &byte, 1, 0) == 1, "there");
        must(send(server, &byte, 1, 0) == 1 && recv(client, &byte, 1, 0) == 1, "back");
        usleep(500);
    }
    return (struct connection){client, server};
}

static void signal_soon(void)
{
    static unsigned seed;
    seed = seed * 1103515245 + 12345;
    timer_settime(timer, 0, &(struct itimerspec){.it_value.tv_nsec = 2000 + (seed >> 16) % 30000}, NULL);
}

static void handle(int number)
{
    (void)number;
    int saved = errno;
    volatile unsigned char large[LARGE];
    for (int i = 0; i < LARGE; i++)
        large[i] = i % 251;
    sent += send(used, (const char *)large, 1, MSG_DONTWAIT) == 1;
    for (int i = 0; i < LARGE; i++)
        must(large[i] == i % 251, "the handler's stack");
    runs++;
    signal_soon();
    errno = saved;
}

static int take(int fd)
{
    char bytes[512];
    ssize_t n = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT);
    return n > 0 ? n : 0;
}

/* Sends on `c`, and the handler on `others`. */
static void use(struct connection c, struct connection others)
{
    used = others.client;
    runs = sent = 0;
    int left = 0;
    signal_soon();
    while (runs < HANDLED) {
        left += send(c.client, "m", 1, 0) == 1;
        left -= take(c.server);
        left -= others.server == c.server ? 0 : take(others.server);
    }
    timer_settime(timer, 0, &(struct itimerspec){0}, NULL);
    for (left += sent; left > 0; left -= take(others.server))
        left -= take(c.server);
}

int main(int argc, char **argv)
{
    static char stack[16 * LARGE];
    int flags = SA_RESTART;
    alarm(LONGEST_S);
    if (argc > 1 && strcmp(argv[1], "aside") == 0) {
        must(sigaltstack(&(stack_t){.ss_sp = stack, .ss_size = sizeof stack}, NULL) == 0, "sigaltstack");
        flags |= SA_ONSTACK;
    }
    struct connection c = linked(), another = linked();
    must(sigaction(SIGUSR1, &(struct sigaction){.sa_handler = handle, .sa_flags = flags}, NULL) == 0, "sigaction");
    struct sigevent event = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGUSR1};
    event._sigev_un._tid = syscall(SYS_gettid);
    must(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0, "timer_create");
    use(c, another);
    use(c, c);
    puts("done");
    return 0;
}
