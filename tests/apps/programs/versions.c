/* Functions whose older versions behave otherwise. With OLDER defined, the program is linked as on a system of before the change:
 * glibc 2.15 for posix_spawn, 2.4 for lio_listio. The argument is an executable file without "#!". */

#define _GNU_SOURCE
#include <aio.h>
#include <arpa/inet.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef OLDER
__asm__(".symver posix_spawn, posix_spawn@GLIBC_2.2.5");
__asm__(".symver posix_spawnp, posix_spawnp@GLIBC_2.2.5");
__asm__(".symver lio_listio, lio_listio@GLIBC_2.2.5");
#endif

enum { ROUNDS = 2000, OPERATIONS = 2 };

extern char **environ;

static void must(int right, const char *what)
{
    if (!right) {
        perror(what);
        exit(2);
    }
}

static void await(const char *name, int error, pid_t pid)
{
    int status = -1;
    if (error == 0)
        must(waitpid(pid, &status, 0) == pid, "waitpid");
    printf("%s: %s, status %d\n", name, error == 0 ? "started" : strerrorname_np(error), status);
    fflush(stdout);
}

static void spawn(char *path)
{
    char *arguments[] = {path, NULL};
    pid_t pid = 0;
    int error = posix_spawn(&pid, path, NULL, NULL, arguments, environ);
    await("posix_spawn", error, pid);
    error = posix_spawnp(&pid, path, NULL, NULL, arguments, environ);
    await("posix_spawnp", error, pid);
}

static void exchange(int from, int to)
{
    char byte = 'x';
    for (int i = 0; i < ROUNDS; i++) {
        must(send(from, &byte, 1, 0) == 1 && recv(to, &byte, 1, 0) == 1, "exchange");
        must(send(to, &byte, 1, 0) == 1 && recv(from, &byte, 1, 0) == 1, "exchange");
    }
}

static void list(int client, int server)
{
    /* Some versions do not wait for the ends of the operations. */
    static struct aiocb operations[OPERATIONS];
    struct aiocb *list[OPERATIONS];
    for (int i = 0; i < OPERATIONS; i++) {
        operations[i].aio_fildes = client;
        operations[i].aio_buf = "written";
        operations[i].aio_nbytes = 7;
        operations[i].aio_lio_opcode = LIO_WRITE;
        operations[i].aio_sigevent.sigev_notify = SIGEV_NONE;
        list[i] = &operations[i];
    }
    must(lio_listio(LIO_WAIT, list, OPERATIONS, NULL) == 0, "lio_listio");
    char text[OPERATIONS * 7 + 1] = {0};
    must(recv(server, text, sizeof text - 1, MSG_WAITALL) == sizeof text - 1, "recv");
    printf("lio_listio: %s\n", text);
}

int main(int argc, char **argv)
{
    must(argc == 2, "one argument");
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    must(bind(listener, (struct sockaddr *)&address, len) == 0 && listen(listener, 1) == 0, "listen");
    must(getsockname(listener, (struct sockaddr *)&address, &len) == 0, "getsockname");
    must(connect(client, (struct sockaddr *)&address, len) == 0, "connect");
    int server = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    must(server >= 0, "accept4");
    exchange(client, server);
    spawn(argv[1]);
    list(client, server);
    exchange(client, server);
    return 0;
}
