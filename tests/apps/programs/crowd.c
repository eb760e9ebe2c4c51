/* Many connections, both ends in this process, in steps: after each one it says "done" and waits for a line, which names
 * the next step.
 *
 *   connect N   N connections, which nobody accepts yet
 *   request     a message on each, from the end that has connected
 *   accept      the other ends
 *   serve       these read the message and answer, and the answers are read
 *   pass        a message on each, in both directions
 *   close       all of them
 */

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "exchange.h"

#define MOST 1000

static int listener, count, clients[MOST], servers[MOST];
static struct sockaddr_in address = {.sin_family = AF_INET};

/* Without waiting, as event loops do. */
static void join(int i)
{
    clients[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    int result = connect(clients[i], (const struct sockaddr *)&address, sizeof address);
    must(result == 0 || errno == EINPROGRESS, "connect");
}

static void request(int i)
{
    char message[MESSAGE] = {0};
    must(send(clients[i], message, MESSAGE, 0) == MESSAGE, "send");
}

static void take(int i)
{
    servers[i] = accept(listener, NULL, NULL);
    must(servers[i] >= 0, "accept");
    must(fcntl(clients[i], F_SETFL, 0) == 0, "fcntl");
}

/* Accepted in the order in which they have connected. */
static void serve(int i)
{
    char message[MESSAGE];
    must(recv(servers[i], message, MESSAGE, MSG_WAITALL) == MESSAGE, "recv");
    pass(servers[i], clients[i]);
}

static void exchange(int i)
{
    pass(clients[i], servers[i]);
    pass(servers[i], clients[i]);
}

static void end(int i)
{
    must(close(clients[i]) == 0 && close(servers[i]) == 0, "close");
}

static void each(void step(int))
{
    for (int i = 0; i < count; i++)
        step(i);
}

int main(void)
{
    socklen_t len = sizeof address;
    char line[64];
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    listener = socket(AF_INET, SOCK_STREAM, 0);
    must(bind(listener, (struct sockaddr *)&address, len) == 0 && listen(listener, MOST) == 0, "listen");
    must(getsockname(listener, (struct sockaddr *)&address, &len) == 0, "getsockname");
    while (puts("done") >= 0 && fflush(stdout) == 0 && fgets(line, sizeof line, stdin)) {
        if (sscanf(line, "connect %d", &count) == 1 && count <= MOST)
            each(join);
        else if (strcmp(line, "request\n") == 0)
            each(request);
        else if (strcmp(line, "accept\n") == 0)
            each(take);
        else if (strcmp(line, "serve\n") == 0)
            each(serve);
        else if (strcmp(line, "pass\n") == 0)
            each(exchange);
        else if (strcmp(line, "close\n") == 0)
            each(end);
        else
            must(0, line);
    }
    return 0;
}
