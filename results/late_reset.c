/* How often kernel TCP answers bytes to a closed socket with a reset only after the sender's next call.
 *
 *   gcc -O1 -o late_reset results/late_reset.c && ./late_reset 300000
 *
 * A server closes each connection as soon as it has accepted it, and tells its client. The client reads the end, sends
 * six bytes, which succeeds, and one more, which is to fail with EPIPE. Prints in how many connections it did not. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static void must(int well, const char *what)
{
    if (!well) {
        perror(what);
        exit(1);
    }
}

static void serve(int listener, int told, int tell, long connections)
{
    char byte;
    for (long i = 0; i < connections && read(told, &byte, 1) == 1; i++) {
        int s = accept(listener, NULL, NULL);
        must(s >= 0, "accept");
        must(close(s) == 0, "close");
        must(write(tell, "c", 1) == 1, "write to the client");
    }
}

static long ask(struct sockaddr_in at, int told, int tell, long connections)
{
    long late = 0;
    char byte;
    for (long i = 0; i < connections; i++) {
        int s = socket(AF_INET, SOCK_STREAM, 0);
        must(connect(s, (struct sockaddr *)&at, sizeof at) == 0, "connect");
        must(write(tell, "o", 1) == 1 && read(told, &byte, 1) == 1, "the server");
        must(read(s, &byte, 1) == 0, "the end of the connection");
        must(send(s, "unread", 6, MSG_DONTWAIT) == 6, "send");
        late += !(send(s, "x", 1, MSG_DONTWAIT) == -1 && errno == EPIPE);
        close(s);
    }
    return late;
}

int main(int count, char **words)
{
    long connections = count > 1 ? atol(words[1]) : 100000;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof at;
    int to_client[2], to_server[2], listener = socket(AF_INET, SOCK_STREAM, 0);
    signal(SIGPIPE, SIG_IGN);
    must(bind(listener, (struct sockaddr *)&at, sizeof at) == 0 && listen(listener, 16) == 0, "listen");
    must(getsockname(listener, (struct sockaddr *)&at, &length) == 0, "getsockname");
    must(pipe(to_client) == 0 && pipe(to_server) == 0, "pipe");
    if (fork() == 0) {
        serve(listener, to_server[0], to_client[1], connections);
        return 0;
    }
    close(to_client[1]);
    close(listener);
    printf("%ld of %ld resets came late\n", ask(at, to_client[0], to_server[1], connections), connections);
    wait(NULL);
    return 0;
}
