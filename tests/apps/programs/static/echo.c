/* Both ends of checked conversations, for programs without a shared C library: threads, a child, signals.
 *
 *   serve PORT: returns what it gets, a thread for each connection.
 *   connect PORT COUNT: COUNT threads; each sends messages of random bytes and sizes, and compares the answers. A child that the
 *     program starts in between has to end well.
 *   run PROGRAM ARGUMENTS: a child.
 */
#include <arpa/inet.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ROUNDS = 2000, MOST = 4096 };

extern char **environ;
static struct sockaddr_in address = {.sin_family = AF_INET};
static _Thread_local uint64_t state;
enum { MARK = 0x5eed1234 };
/* A handler finds it only with this program's own thread pointer. */
static _Thread_local volatile int mark = MARK;

static void must(int right, const char *what)
{
    if (!right) {
        perror(what);
        exit(2);
    }
}

static uint64_t next(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static void on_signal(int number)
{
    (void)number;
    if (mark != MARK)
        _exit(6);
}

static void write_all(int fd, const unsigned char *bytes, size_t len)
{
    while (len > 0) {
        ssize_t n = write(fd, bytes, len);
        must(n > 0, "write");
        bytes += n;
        len -= (size_t)n;
    }
}

static void *serve(void *argument)
{
    static _Thread_local unsigned char bytes[65536];
    int fd = (int)(intptr_t)argument;
    ssize_t n;
    while ((n = read(fd, bytes, sizeof bytes)) > 0)
        write_all(fd, bytes, (size_t)n);
    must(n == 0 && close(fd) == 0, "end of a connection");
    return NULL;
}

static void exchange(int fd, unsigned char *sent, unsigned char *got, size_t len)
{
    for (size_t i = 0; i < len; i++)
        sent[i] = (unsigned char)next();
    write_all(fd, sent, len);
    must(recv(fd, got, len, MSG_WAITALL) == (ssize_t)len, "recv");
    if (memcmp(sent, got, len)) {
        fputs("an answer differs from its message\n", stderr);
        exit(1);
    }
}

static void *converse(void *argument)
{
    unsigned char sent[MOST], got[MOST];
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    size_t total = 0;
    state = 88172645463325252u + (uint64_t)(uintptr_t)argument;
    must(fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) == 0, "connect");
    for (int round = 0; round < ROUNDS; round++) {
        size_t len = 1 + next() % MOST;
        exchange(fd, sent, got, len);
        total += 2 * len;
    }
    must(close(fd) == 0, "close");
    return (void *)total;
}

static int run(char **words)
{
    pid_t child;
    int status;
    must(posix_spawn(&child, words[0], NULL, NULL, words, environ) == 0, "posix_spawn");
    must(waitpid(child, &status, 0) == child && WIFEXITED(status), "the child");
    return WEXITSTATUS(status);
}

static void start_child(char *mark)
{
    pid_t child;
    int status;
    char *words[] = {"/bin/sh", "-c", mark, NULL};
    must(run(words) == 7, "the spawned child");
    must((child = fork()) >= 0, "fork");
    if (child == 0)
        _exit(9);
    must(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 9, "the forked child");
}

int main(int argc, char **argv)
{
    static pthread_t threads[64];
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    size_t total = 0;
    must(argc >= 3 && sigaction(SIGUSR1, &action, NULL) == 0, "arguments");
    if (strcmp(argv[1], "run") == 0)
        return run(argv + 2);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons((uint16_t)atoi(argv[2]));
    if (strcmp(argv[1], "serve") == 0) {
        int listener = socket(AF_INET, SOCK_STREAM, 0), yes = 1;
        must(setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) == 0, "setsockopt");
        must(bind(listener, (struct sockaddr *)&address, sizeof address) == 0 && listen(listener, 64) == 0, "listen");
        for (;;) {
            pthread_t thread;
            int fd = accept(listener, NULL, NULL);
            must(fd >= 0, "accept");
            must(pthread_create(&thread, NULL, serve, (void *)(intptr_t)fd) == 0, "pthread_create");
            pthread_detach(thread);
        }
    }
    int count = argc > 3 ? atoi(argv[3]) : 1;
    must(count > 0 && count <= 64, "COUNT");
    puts("begun");
    fflush(stdout);
    for (int i = 0; i < count; i++)
        must(pthread_create(&threads[i], NULL, converse, (void *)(intptr_t)i) == 0, "pthread_create");
    start_child("exit 7");
    for (int i = 0; i < count; i++) {
        void *result;
        must(pthread_join(threads[i], &result) == 0, "pthread_join");
        total += (size_t)result;
    }
    printf("done {\"requests\": %d, \"payload_bytes\": %zu, \"seconds\": 0}\n", count * ROUNDS, total);
    fflush(stdout);
    while (getchar() != EOF)
        ;
    return 0;
}
