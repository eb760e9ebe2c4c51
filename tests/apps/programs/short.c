/* Short connections, one after the other, both ends in one process: `count` connections with `requests` requests of 64 bytes
 * each, and then one with as many as the third argument says. */

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "exchange.h"

static void connection(int listener, const struct sockaddr_in *address, int requests)
{
    int client = socket(AF_INET, SOCK_STREAM, 0);
    must(connect(client, (const struct sockaddr *)address, sizeof *address) == 0, "connect");
    int server = accept(listener, NULL, NULL);
    char end;
    must(server >= 0, "accept");
    for (int request = 0; request < requests; request++) {
        pass(client, server);
        pass(server, client);
    }
    must(close(server) == 0, "close");
    must(recv(client, &end, 1, 0) == 0, "the end");
    must(close(client) == 0, "close");
}

int main(int argc, char **argv)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    int count = argc > 1 ? atoi(argv[1]) : 0, requests = argc > 2 ? atoi(argv[2]) : 0;
    must(bind(listener, (struct sockaddr *)&address, len) == 0 && listen(listener, 1) == 0, "listen");
    must(getsockname(listener, (struct sockaddr *)&address, &len) == 0, "getsockname");
    for (int i = 0; i < count; i++)
        connection(listener, &address, requests);
    if (argc > 3)
        connection(listener, &address, atoi(argv[3]));
    puts("done");
    return 0;
}
