/* Two ends of one connection in one process: round trips of 64 bytes, each of which finds its message there. `count` of them
 * after so many that both directions are on a link where there can be one. In between it says "ready" and reads a line. With a
 * second argument each message is sent from two buffers. */

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#define MESSAGE 64
/* More than enough for a link: the library asks for it after a few operations, and its helper needs some milliseconds. */
#define BEFORE 300

static void must(int right, const char *what)
{
    if (!right) {
        perror(what);
        exit(2);
    }
}

static int in_pieces;

static void pass(int from, int to)
{
    static char out[MESSAGE], in[MESSAGE];
    struct iovec pieces[2] = {{out, MESSAGE / 2}, {out + MESSAGE / 2, MESSAGE / 2}};
    if (in_pieces)
        must(writev(from, pieces, 2) == MESSAGE, "writev");
    else
        must(send(from, out, MESSAGE, 0) == MESSAGE, "send");
    must(recv(to, in, MESSAGE, 0) == MESSAGE, "recv");
}

int main(int argc, char **argv)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0), client = socket(AF_INET, SOCK_STREAM, 0);
    must(bind(listener, (struct sockaddr *)&address, len) == 0 && listen(listener, 1) == 0, "listen");
    must(getsockname(listener, (struct sockaddr *)&address, &len) == 0, "getsockname");
    must(connect(client, (struct sockaddr *)&address, len) == 0, "connect");
    int server = accept(listener, NULL, NULL), count = argc > 1 ? atoi(argv[1]) : 0;
    must(server >= 0, "accept");
    in_pieces = argc > 2;
    for (int i = 0; i < BEFORE; i++) {
        pass(client, server);
        pass(server, client);
        usleep(1000);
    }
    puts("ready");
    fflush(stdout);
    while (getchar() != '\n' && !feof(stdin))
        ;
    for (int i = 0; i < count; i++) {
        pass(client, server);
        pass(server, client);
    }
    puts("done");
    return 0;
}
