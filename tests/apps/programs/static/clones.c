/* Children and threads by clone3, and by fork with what a C library's fork leaves to the kernel: one line for each, the same with
 * and without acceleration. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* That of linux/sched.h, which musl's compiler does not find. */
struct clone_args {
    unsigned long long flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls, set_tid, set_tid_size, cgroup;
};
#define CLONE_INTO_CGROUP 0x200000000ULL
#ifndef SYS_clone3
#define SYS_clone3 435
#endif

static long clone3(struct clone_args *args, size_t len)
{
    return syscall(SYS_clone3, args, len);
}

static int status_of(pid_t pid)
{
    int status = -1;
    if (waitpid(pid, &status, __WALL) != pid)
        return -errno;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + status;
}

/* The child's registers and memory, and what the kernel writes into both. */
static void forks(void)
{
    static int parent_tid, child_tid, pidfd = -1;
    struct clone_args args = {
        .flags = CLONE_PARENT_SETTID | CLONE_CHILD_SETTID | CLONE_PIDFD,
        .pidfd = (uintptr_t)&pidfd,
        .parent_tid = (uintptr_t)&parent_tid,
        .child_tid = (uintptr_t)&child_tid,
        .exit_signal = SIGCHLD,
    };
    int own = 7;
    pid_t pid = clone3(&args, sizeof args);
    if (pid == 0) {
        own++;
        _exit(own == 8 && child_tid == getpid() && parent_tid == 0 ? 21 : 1);
    }
    struct pollfd ended = {.fd = pidfd, .events = POLLIN};
    printf("fork: %d %d %d", parent_tid == pid, poll(&ended, 1, 10000), child_tid);
    printf(" %d %d\n", status_of(pid), own);
}

/* As `clone` can do it: the descriptor takes the argument of the number. */
static void described(void)
{
    static int pidfd = -1;
    struct clone_args args = {.flags = CLONE_PIDFD, .pidfd = (uintptr_t)&pidfd, .exit_signal = SIGCHLD};
    pid_t pid = clone3(&args, sizeof args);
    if (pid == 0)
        _exit(22);
    struct pollfd ended = {.fd = pidfd, .events = POLLIN};
    printf("described: %d", poll(&ended, 1, 10000));
    printf(" %d\n", status_of(pid));
}

/* The child has a stack of its own, and the memory of this process, which sleeps. */
static void sleeps(void)
{
    enum { BYTES = 65536 };
    static volatile int written;
    char *stack = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct clone_args args = {
        .flags = CLONE_VM | CLONE_VFORK,
        .exit_signal = SIGCHLD,
        .stack = (uintptr_t)stack,
        .stack_size = BYTES,
    };
    long pid;
    /* The child may not return from here: its stack is empty. */
    __asm__ volatile("syscall\n"
                     "test %%rax, %%rax\n"
                     "jnz 1f\n"
                     "mov %%rsp, %%rdi\n"
                     "sub %[stack], %%rdi\n"
                     "cmp $65536, %%rdi\n"
                     "sete %%dil\n"
                     "movzbl %%dil, %%edi\n"
                     "add $41, %%edi\n"
                     "movl %%edi, %[written]\n"
                     "mov $60, %%eax\n"
                     "syscall\n"
                     "1:\n"
                     : "=a"(pid), [written] "=m"(written)
                     : "a"((long)SYS_clone3), "D"(&args), "S"(sizeof args), [stack] "r"(stack)
                     : "rcx", "r11", "memory");
    printf("sleeps: %d %d\n", written, status_of(pid));
    munmap(stack, BYTES);
}

static void errors(void)
{
    struct clone_args args = {.flags = CLONE_INTO_CGROUP, .exit_signal = SIGCHLD, .cgroup = 1 << 20};
    struct {
        struct clone_args args;
        long more;
    } later = {.args = args, .more = 1};
    printf("errors:");
    printf(" %s", clone3(&args, sizeof args) < 0 ? strerror(errno) : "none");
    printf(", %s", clone3(&args, 40) < 0 ? strerror(errno) : "none");
    printf(", %s", clone3(&later.args, sizeof later) < 0 ? strerror(errno) : "none");
    printf(", %s\n", clone3(NULL, sizeof args) < 0 ? strerror(errno) : "none");
}

#ifdef __GLIBC__
static pthread_t first;

static void *joins(void *argument)
{
    (void)argument;
    /* Comes back when the kernel has cleared the word that fork has named. */
    _exit(pthread_join(first, NULL) == 0 ? 31 : 1);
}

/* In a forked child, the first thread ends before another one, which waits for it. musl's child waits forever. */
static void outlived(void)
{
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        pthread_t other;
        alarm(20);
        first = pthread_self();
        pthread_create(&other, NULL, joins, NULL);
        pthread_exit(NULL);
    }
    printf("outlived: %d\n", status_of(pid));
}
#endif

static void *counts(void *count)
{
    __atomic_add_fetch((int *)count, 1, __ATOMIC_SEQ_CST);
    return count;
}

/* Threads that end are gone: each gives back its stack, and is joined. In a child, too, whose parent had many. */
static int threads(void)
{
    int count = 0;
    for (int i = 0; i < 200; i++) {
        pthread_t one, two;
        if (pthread_create(&one, NULL, counts, &count) || pthread_create(&two, NULL, counts, &count))
            return -1;
        void *result = NULL;
        if (pthread_join(one, &result) || result != &count || pthread_join(two, NULL))
            return -2;
    }
    return count;
}

static void *waits(void *end)
{
    char byte;
    return (void *)read((intptr_t)end, &byte, 1);
}

/* The last thread of a child ends the child, whatever threads its parent had. */
static void last(void)
{
    int ends[2];
    pthread_t other;
    if (pipe(ends) || pthread_create(&other, NULL, waits, (void *)(intptr_t)ends[0]))
        exit(2);
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        alarm(20);
        if (threads() != 400)
            _exit(3);
        syscall(SYS_exit, 51);
    }
    printf("last: %d", status_of(pid));
    printf(" %d", write(ends[1], "b", 1) == 1 && pthread_join(other, NULL) == 0);
    printf(" %d\n", threads());
}

int main(void)
{
    forks();
    fflush(stdout);
    described();
    fflush(stdout);
    sleeps();
    errors();
#ifdef __GLIBC__
    outlived();
#endif
    last();
    return 0;
}
