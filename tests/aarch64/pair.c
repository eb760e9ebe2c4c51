/*
 * One end of a conversation in messages of 64 bytes, whose bytes the client checks: `serve PORT COUNT` or `ask PORT COUNT`.
 * Two programs rather than one that forks: QEMU 7.2 cannot fork a process that has threads.
 */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
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

static void receive(int connection)
{
    must(recv(connection, message, MESSAGE, MSG_WAITALL) == MESSAGE, "recv");
}

static void transmit(int connection)
{
    must(send(connection, message, MESSAGE, 0) == MESSAGE, "send");
}

int main(int argc, char **argv)
{
    must(argc == 4, "usage: pair serve|ask PORT COUNT");
    int count = atoi(argv[3]), connection = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(atoi(argv[2])), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (strcmp(argv[1], "serve") == 0) {
        int listener = connection;
        must(bind(listener, (struct sockaddr *)&address, sizeof address) == 0 && listen(listener, 1) == 0, "listen");
        connection = accept(listener, NULL, NULL);
        must(connection >= 0, "accept");
        for (int i = 0; i < count; i++) {
            receive(connection);
            transmit(connection);
        }
        must(recv(connection, message, 1, 0) == 0, "the end");
        return 0;
    }
    must(connect(connection, (struct sockaddr *)&address, sizeof address) == 0, "connect");
    for (int i = 0; i < count; i++) {
        char sent[MESSAGE];
        memset(message, i * 7, MESSAGE);
        memcpy(sent, message, MESSAGE);
        transmit(connection);
        memset(message, 0, MESSAGE);
        receive(connection);
        must(memcmp(sent, message, MESSAGE) == 0, "the answer");
    }
    printf("%d answers\n", count);
    return 0;
}
