/* Connections that were used and are idle: `server COUNT` prints its port, and answers; `client COUNT PORT LARGE` connects, and
 * makes each connection carry requests of 64 bytes. Each prints `ready` before it has a connection, and the client prints `idle`
 * after its last answer. For one more line of input it sends LARGE bytes on each connection, and prints `sent`; for the next, it
 * reads the answers and prints `idle` again. Both end with their standard input. */

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#define SMALL 64
#define ROUNDS 60

static char buffer[1 << 20];

static void must(int right, const char *what)
{
    if (!right) {
        perror(what);
        exit(2);
    }
}

static struct sockaddr_in local(int port)
{
    return (struct sockaddr_in){
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

static void send_all(int fd, size_t len)
{
    for (size_t at = 0; at < len;) {
        ssize_t n = send(fd, buffer + at, len - at, 0);
        must(n > 0, "send");
        at += n;
    }
}

static void serve(int count)
{
    struct sockaddr_in address = local(0);
    socklen_t len = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0), poller = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN, .data.fd = STDIN_FILENO}, events[64];
    must(bind(listener, (struct sockaddr *)&address, len) == 0 && listen(listener, 1024) == 0, "listen");
    must(getsockname(listener, (struct sockaddr *)&address, &len) == 0, "getsockname");
    printf("ready %d\n", ntohs(address.sin_port));
    fflush(stdout);
    must(epoll_ctl(poller, EPOLL_CTL_ADD, STDIN_FILENO, &event) == 0, "epoll_ctl");
    for (int i = 0; i < count; i++) {
        event.data.fd = accept(listener, NULL, NULL);
        must(event.data.fd >= 0, "accept");
        must(epoll_ctl(poller, EPOLL_CTL_ADD, event.data.fd, &event) == 0, "epoll_ctl");
    }
    for (;;) {
        int n = epoll_wait(poller, events, 64, -1);
        must(n > 0, "epoll_wait");
        for (int i = 0; i < n; i++) {
            int fd = events[i].data.fd;
            if (fd == STDIN_FILENO)
                return;
            ssize_t got = recv(fd, buffer, sizeof buffer, 0);
            must(got >= 0, "recv");
            if (got == 0)
                must(close(fd) == 0, "close");
            else
                send_all(fd, got);
        }
    }
}

static void receive(int fd, size_t len)
{
    must(recv(fd, buffer, len, MSG_WAITALL) == (ssize_t)len, "recv");
}

static void say(const char *what)
{
    puts(what);
    fflush(stdout);
}

static void use(int count, int port, size_t large)
{
    struct sockaddr_in address = local(port);
    int *fds = calloc(count, sizeof *fds), one = 1;
    say("ready");
    must(getchar() == '\n', "the beginning");
    for (int i = 0; i < count; i++) {
        fds[i] = socket(AF_INET, SOCK_STREAM, 0);
        must(connect(fds[i], (struct sockaddr *)&address, sizeof address) == 0, "connect");
        must(setsockopt(fds[i], IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) == 0, "TCP_NODELAY");
    }
    for (int round = 0; round < ROUNDS; round++)
        for (int i = 0; i < count; i++) {
            send_all(fds[i], SMALL);
            receive(fds[i], SMALL);
        }
    say("idle");
    while (getchar() == '\n') {
        for (int i = 0; i < count; i++)
            send_all(fds[i], large);
        say("sent");
        must(getchar() == '\n', "the answers");
        for (int i = 0; i < count; i++)
            receive(fds[i], large);
        say("idle");
    }
}

int main(int argc, char **argv)
{
    struct rlimit files;
    int count = argc > 2 ? atoi(argv[2]) : 0;
    must(getrlimit(RLIMIT_NOFILE, &files) == 0, "getrlimit");
    files.rlim_cur = files.rlim_max;
    must(setrlimit(RLIMIT_NOFILE, &files) == 0, "setrlimit");
    if (strcmp(argv[1], "server") == 0)
        serve(count);
    else
        use(count, atoi(argv[3]), atol(argv[4]));
    return 0;
}
