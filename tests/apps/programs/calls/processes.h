/* What cases with several processes share. */
#pragma once

#include "calls.h"

extern char **environ;

/* Where a program that is started finds the connection. */
#define PLACE 7

/* The arguments of the program that serves the connection at that place. */
extern char *hold_arguments[];

void await_readable(int fd);

/* A child that does `work` and ends. What was printed before is printed once. */
pid_t child_for(void (*work)(struct connection), struct connection c);

/* Waits for a child, and prints how it ended. */
void reap(pid_t child);

/* Prints what comes at the end of a connection. */
void show_end(int fd);

/* What another holder of the server's end does: it finds unread bytes, answers, and has a longer conversation. */
void serve_as_holder(int fd);

/* The client's part of that. */
void talk_to_holder(int fd);
