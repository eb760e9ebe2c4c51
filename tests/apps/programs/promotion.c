/* `count` connections, both ends in this process: one request of 64 bytes and its answer on each, after which the library
 * asks for a link. Then "ready", and nothing more until a line comes: the library's own thread alone makes the links. */

#include <arpa/inet.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "exchange.h"

int main(int argc, char **argv)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0), count = argc > 1 ? atoi(argv[1]) : 1;
    must(bind(listener, (struct sockaddr *)&address, len) == 0 && listen(listener, 1) == 0, "listen");
    must(getsockname(listener, (struct sockaddr *)&address, &len) == 0, "getsockname");
    for (int i = 0; i < count; i++) {
        int client = socket(AF_INET, SOCK_STREAM, 0);
        must(connect(client, (const struct sockaddr *)&address, sizeof address) == 0, "connect");
        int server = accept(listener, NULL, NULL);
        must(server >= 0, "accept");
        pass(client, server);
        pass(server, client);
    }
    puts("ready");
    must(fflush(stdout) == 0, "ready");
    must(read(0, &address, 1) == 1, "a line");
    /* The library takes no part in this end: it would bring the connections back to TCP. */
    return kill(getpid(), SIGKILL);
}
