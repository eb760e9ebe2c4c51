/* A connection on which one thread receives, and another one sends `count` messages of 64 bytes meanwhile. The other end, in the
 * same thread as the sender, answers the last of them. */

#include <arpa/inet.h>
#include <pthread.h>

#include "exchange.h"

static int client;

static void *await_answer(void *unused)
{
    char answer;
    must(recv(client, &answer, 1, 0) == 1, "the answer");
    return unused;
}

int main(int argc, char **argv)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0), count = argc > 1 ? atoi(argv[1]) : 0;
    pthread_t receiver;
    must(bind(listener, (struct sockaddr *)&address, len) == 0 && listen(listener, 1) == 0, "listen");
    must(getsockname(listener, (struct sockaddr *)&address, &len) == 0, "getsockname");
    client = socket(AF_INET, SOCK_STREAM, 0);
    must(connect(client, (struct sockaddr *)&address, len) == 0, "connect");
    int server = accept(listener, NULL, NULL);
    must(server >= 0, "accept");
    must(pthread_create(&receiver, NULL, await_answer, NULL) == 0, "pthread_create");
    for (int i = 0; i < count; i++)
        pass(client, server);
    must(send(server, "a", 1, 0) == 1, "send");
    must(pthread_join(receiver, NULL) == 0, "pthread_join");
    puts("done");
    return 0;
}
