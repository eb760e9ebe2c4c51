/* Two processes, and round trips of 64 bytes between them with blocking calls. Prints the time of one in microseconds. */

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MESSAGE 64

static char message[MESSAGE];

static void must(int right, const char *what)
{
    if (!right) {
        perror(what);
        exit(2);
    }
}

static void pass_on(int connection, int count)
{
    for (int i = 0; i < count; i++) {
        must(recv(connection, message, MESSAGE, MSG_WAITALL) == MESSAGE, "recv");
        must(send(connection, message, MESSAGE, 0) == MESSAGE, "send");
    }
}

static double now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1e6 + now.tv_nsec / 1e3;
}

static void begin(int connection, int count)
{
    double begun = now_us();
    for (int i = 0; i < count; i++) {
        must(send(connection, message, MESSAGE, 0) == MESSAGE, "send");
        must(recv(connection, message, MESSAGE, MSG_WAITALL) == MESSAGE, "recv");
    }
    printf("%.2f\n", (now_us() - begun) / count);
}

int main(int argc, char **argv)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof address;
    int count = argc > 1 ? atoi(argv[1]) : 0, listener = socket(AF_INET, SOCK_STREAM, 0), status;
    must(bind(listener, (struct sockaddr *)&address, len) == 0 && listen(listener, 1) == 0, "listen");
    must(getsockname(listener, (struct sockaddr *)&address, &len) == 0, "getsockname");
    pid_t child = fork();
    must(child >= 0, "fork");
    if (child == 0) {
        must(close(listener) == 0, "close");
        int client = socket(AF_INET, SOCK_STREAM, 0);
        must(connect(client, (struct sockaddr *)&address, len) == 0, "connect");
        begin(client, count);
        exit(0);
    }
    int server = accept(listener, NULL, NULL);
    must(server >= 0, "accept");
    pass_on(server, count);
    must(waitpid(child, &status, 0) == child && status == 0, "the child");
    return 0;
}
