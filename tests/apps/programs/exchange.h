/* Parts of programs that exchange messages of 64 bytes on connections whose two ends they hold. */

#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>

#define MESSAGE 64

static void must(int right, const char *what)
{
    if (!right) {
        perror(what);
        exit(2);
    }
}

__attribute__((unused)) static void pass(int from, int to)
{
    static char out[MESSAGE], in[MESSAGE];
    must(send(from, out, MESSAGE, 0) == MESSAGE, "send");
    must(recv(to, in, MESSAGE, MSG_WAITALL) == MESSAGE, "recv");
}
