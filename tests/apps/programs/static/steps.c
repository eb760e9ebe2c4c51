/* Counts the instructions of a program between its breakpoints: `steps PROGRAM ARGUMENTS`. Each int3 of the program ends a
 * section, the second one the first of them. Prints the number of instructions of each, in a line. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

static void fail(const char *what)
{
    perror(what);
    exit(2);
}

int main(int argc, char **argv)
{
    if (argc < 2)
        return 2;
    pid_t child = fork();
    if (child == 0) {
        if (ptrace(PTRACE_TRACEME, 0, NULL, NULL))
            fail("ptrace");
        raise(SIGSTOP);
        execv(argv[1], argv + 1);
        fail(argv[1]);
    }
    int status, has_begun = 0;
    long steps = 0;
    if (waitpid(child, &status, 0) != child || !WIFSTOPPED(status) ||
        ptrace(PTRACE_SETOPTIONS, child, NULL, PTRACE_O_EXITKILL | PTRACE_O_TRACEEXEC))
        fail("ptrace");
    int signal = 0;
    for (;;) {
        if (ptrace(has_begun ? PTRACE_SINGLESTEP : PTRACE_CONT, child, NULL, (void *)(long)signal))
            fail("ptrace");
        if (waitpid(child, &status, 0) != child)
            fail("waitpid");
        if (!WIFSTOPPED(status))
            return WIFEXITED(status) ? WEXITSTATUS(status) : 2;
        signal = WSTOPSIG(status);
        siginfo_t info;
        if (signal != SIGTRAP || status >> 16 != 0) {
            signal = status >> 16 != 0 ? 0 : signal;
        } else if (ptrace(PTRACE_GETSIGINFO, child, NULL, &info)) {
            fail("ptrace");
        } else {
            signal = 0;
            if (info.si_code == SI_KERNEL) {
                if (has_begun)
                    printf("%ld\n", steps);
                fflush(stdout);
                has_begun = 1;
                steps = 0;
            } else {
                steps++;
            }
        }
    }
}
