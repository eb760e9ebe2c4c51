/* Input and output that a library between program and kernel does not see, or sees too late. */

#include "calls.h"

#include <sys/epoll.h>

/* A young connection is used by raw system calls before it can be on a link. */
static void raw_when_young(void)
{
    struct connection c = connected();
    char text[16] = {0};
    show("write", raw_call(SYS_write, c.client, (long)"raw", 3, 0, 0));
    show("read", raw_call(SYS_read, c.server, (long)text, sizeof text, 0, 0));
    puts(text);
    show("write", raw_call(SYS_write, c.server, (long)"answer", 6, 0, 0));
    show_text(c.client, 6);
    /* Often, and for long enough, that it would be on a link by the end. */
    for (int i = 0; i < 100; i++) {
        char byte;
        send_text(c.client, "x");
        receive_exactly(c.server, &byte, 1);
        send_text(c.server, "y");
        receive_exactly(c.client, &byte, 1);
        usleep(1000);
    }
    exchange(c);
}

/* A descriptor is registered with an instance where nobody sees it; the waits are seen. */
static void unseen_registration(void)
{
    struct connection c = connected();
    int epoll = must(epoll_create1(0));
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = &c};
    must(raw_call(SYS_epoll_ctl, epoll, EPOLL_CTL_ADD, c.server, (long)&event, 0));
    for (int i = 0; i < 100; i++) {
        char byte;
        send_text(c.client, "x");
        event.data.ptr = NULL;
        if (epoll_wait(epoll, &event, 1, PATIENCE_MS) != 1 || event.data.ptr != &c)
            die("not told of the registration's own data");
        receive_exactly(c.server, &byte, 1);
        send_text(c.server, "y");
        receive_exactly(c.client, &byte, 1);
        usleep(1000);
    }
    show("nothing", epoll_wait(epoll, &event, 1, 0));
    exchange(c);
}

const struct test_case unseen_cases[] = {
    {"raw_when_young", raw_when_young},
    {"unseen_registration", unseen_registration},
    {NULL, NULL},
};
