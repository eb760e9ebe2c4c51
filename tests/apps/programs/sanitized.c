/* A client and a server that is forked, for builds with sanitizers: `sanitized CASE` moves bytes, and may do something that a
 * sanitizer finds. */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define MESSAGE 4000
#define ROUNDS 400

static int listener;
static struct sockaddr_in address;

static void check(int right, const char *what)
{
    if (!right) {
        perror(what);
        exit(3);
    }
}

static int client(void)
{
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    check(connect(fd, (struct sockaddr *)&address, sizeof address) == 0, "connect");
    return fd;
}

static void echo(void)
{
    int fd = accept(listener, NULL, NULL);
    int instance = epoll_create1(0);
    struct epoll_event e = {.events = EPOLLIN, .data.fd = fd};
    check(epoll_ctl(instance, EPOLL_CTL_ADD, fd, &e) == 0, "epoll_ctl");
    char *bytes = malloc(MESSAGE);
    for (;;) {
        int ready = epoll_wait(instance, &e, 1, -1);
        if (ready < 0 && errno == EINTR)
            continue;
        check(ready == 1, "epoll_wait");
        ssize_t n = recv(e.data.fd, bytes, MESSAGE, 0);
        if (n <= 0)
            break;
        check(send(fd, bytes, n, 0) == n, "send");
    }
    free(bytes);
    close(instance);
    close(fd);
}

static void *echo_in_thread(void *unused)
{
    echo();
    return unused;
}

static void receive(int fd, char *bytes, size_t len)
{
    for (size_t done = 0; done < len;) {
        struct pollfd p = {fd, POLLIN, 0};
        check(poll(&p, 1, 20000) == 1, "poll");
        ssize_t n = read(fd, bytes + done, len - done);
        check(n > 0, "read");
        done += n;
    }
}

static void talk(int fd)
{
    char sent[MESSAGE], received[MESSAGE];
    for (int i = 0; i < ROUNDS; i++) {
        memset(sent, i, sizeof sent);
        check(write(fd, sent, sizeof sent) == sizeof sent, "write");
        receive(fd, received, sizeof received);
        check(memcmp(sent, received, sizeof sent) == 0, "the same bytes");
        /* There may be a link soon. */
        if (i < 150)
            usleep(1000);
    }
    puts("echoed");
}

/* Bytes that the other thread reads only once it was told of them through the connection. */
static int handed_over;

static void *hand_over(void *fd)
{
    handed_over = 7;
    check(write(*(int *)fd, "!", 1) == 1, "write");
    return NULL;
}

int main(int count, char **arguments)
{
    const char *name = count > 1 ? arguments[1] : "";
    listener = socket(AF_INET, SOCK_STREAM, 0);
    address = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof address;
    check(bind(listener, (struct sockaddr *)&address, len) == 0 && listen(listener, 8) == 0, "listen");
    getsockname(listener, (struct sockaddr *)&address, &len);
    pid_t child = 0;
    pthread_t thread;
    if (strcmp(name, "fork") == 0) {
        child = fork();
        if (child == 0) {
            echo();
            close(listener);
            exit(0);
        }
    } else {
        check(pthread_create(&thread, NULL, echo_in_thread, NULL) == 0, "pthread_create");
    }
    int fd = client();
    talk(fd);
    if (strcmp(name, "overflow") == 0) {
        char *small = malloc(16);
        check(write(fd, "0123456789012345678901234567890", 31) == 31, "write");
        struct pollfd p = {fd, POLLIN, 0};
        check(poll(&p, 1, 20000) == 1, "poll");
        /* Volatile: the compiler would see it. */
        volatile size_t too_long = 31;
        check(recv(fd, small, too_long, MSG_WAITALL) == 31, "recv");
        puts("nobody noticed");
    } else if (strcmp(name, "leak") == 0) {
        void *volatile lost = malloc(1234);
        lost = NULL;
        (void)lost;
    } else if (strcmp(name, "race") == 0) {
        pthread_t other;
        check(pthread_create(&other, NULL, hand_over, &fd) == 0, "pthread_create");
        handed_over = 8;
        pthread_join(other, NULL);
    } else if (strcmp(name, "handover") == 0) {
        pthread_t other;
        char byte;
        check(pthread_create(&other, NULL, hand_over, &fd) == 0, "pthread_create");
        receive(fd, &byte, 1);
        printf("handed over: %d\n", handed_over);
        pthread_join(other, NULL);
    } else if (strcmp(name, "starts") == 0) {
        fflush(stdout);
        check(system("printenv LD_PRELOAD || echo none") == 0, "system");
    }
    shutdown(fd, SHUT_WR);
    if (child > 0) {
        int status;
        waitpid(child, &status, 0);
        printf("server: %d\n", status);
    } else {
        pthread_join(thread, NULL);
    }
    close(fd);
    close(listener);
    return 0;
}
