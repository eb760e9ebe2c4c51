/* A server of one thread with blocking calls, and clients one after the other, each a process of its own, with two connections one
 * after the other. `COUNT` of them make `SHORT` requests of 64 bytes on each, or two, and the last one makes `REQUESTS` on its
 * second connection. Each request has a number, which its answer repeats. */

#include <arpa/inet.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "exchange.h"

static void ask(const struct sockaddr_in *address, int requests)
{
    char message[MESSAGE] = {0}, answer[MESSAGE];
    int server = socket(AF_INET, SOCK_STREAM, 0);
    must(connect(server, (const struct sockaddr *)address, sizeof *address) == 0, "connect");
    for (int i = 0; i < requests; i++) {
        memcpy(message, &i, sizeof i);
        must(send(server, message, MESSAGE, 0) == MESSAGE, "send");
        must(recv(server, answer, MESSAGE, MSG_WAITALL) == MESSAGE, "recv");
        must(memcmp(message, answer, MESSAGE) == 0, "another answer");
    }
    must(close(server) == 0, "close");
}

static void answer(int listener)
{
    char message[MESSAGE];
    ssize_t length;
    int client = accept(listener, NULL, NULL);
    must(client >= 0, "accept");
    while ((length = recv(client, message, MESSAGE, 0)) > 0)
        must(send(client, message, (size_t)length, 0) == length, "send");
    must(length == 0 && close(client) == 0, "the end");
}

static void serve(int listener, const struct sockaddr_in *address, int first, int second)
{
    int status;
    pid_t child = fork();
    must(child >= 0, "fork");
    if (child == 0) {
        must(close(listener) == 0, "close");
        ask(address, first);
        ask(address, second);
        exit(0);
    }
    answer(listener);
    answer(listener);
    must(waitpid(child, &status, 0) == child && status == 0, "the client");
}

int main(int argc, char **argv)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    must(argc == 3 || argc == 4, "usage: clients COUNT REQUESTS [SHORT]");
    int few = argc == 4 ? atoi(argv[3]) : 2;
    must(bind(listener, (struct sockaddr *)&address, len) == 0 && listen(listener, 1) == 0, "listen");
    must(getsockname(listener, (struct sockaddr *)&address, &len) == 0, "getsockname");
    for (int i = 0; i < atoi(argv[1]); i++)
        serve(listener, &address, few, few);
    serve(listener, &address, few, atoi(argv[2]));
    puts("done");
    return 0;
}
