/* What a program finds in its process: one line for each part, the same with and without acceleration. */
#define _GNU_SOURCE
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define ARCH_GET_FS 0x1003
#define ARCH_SET_FS 0x1002

extern char _start[];
static _Thread_local volatile int own = 5;

static long raw(long number, long a, long b, long c, long d)
{
    long result;
    register long fourth __asm__("r10") = d;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "0"(number), "D"(a), "S"(b), "d"(c), "r"(fourth)
                     : "rcx", "r11", "memory");
    return result;
}

enum { WORDS = 11, VECTORS = 16 };

struct registers {
    uint64_t words[WORDS];
    uint8_t vectors[VECTORS][16];
};

#define EACH_WORD(DO) \
    DO(0, rdi) DO(1, rsi) DO(2, rdx) DO(3, r10) DO(4, r8) DO(5, r9) DO(6, rbx) DO(7, r12) DO(8, r13) DO(9, r14) DO(10, r15)
#define EACH_VECTOR(DO) \
    DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7) DO(8) DO(9) DO(10) DO(11) DO(12) DO(13) DO(14) DO(15)
#define LOAD(n, name) "mov 8*" #n "(%rax), %" #name "\n"
#define STORE(n, name) "mov %" #name ", 8*" #n "(%rcx)\n"
#define LOAD_VECTOR(n) "movdqu 88+16*" #n "(%rax), %xmm" #n "\n"
#define STORE_VECTOR(n) "movdqu %xmm" #n ", 88+16*" #n "(%rcx)\n"

/* Closes the descriptor `before->words[0]`, with these registers, and stores those that it finds afterwards. */
long close_with(const struct registers *before, struct registers *after);
__asm__(".text\n"
        "close_with:\n"
        "push %rbx\n push %rbp\n push %r12\n push %r13\n push %r14\n push %r15\n"
        "mov %rsi, %rbp\n"
        "mov %rdi, %rax\n" EACH_VECTOR(LOAD_VECTOR) EACH_WORD(LOAD)
        "mov $3, %eax\n"
        "syscall\n"
        "nop\n nop\n nop\n"
        "mov %rbp, %rcx\n" EACH_VECTOR(STORE_VECTOR) EACH_WORD(STORE)
        "pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbp\n pop %rbx\n"
        "ret\n");

/* A call that comes to the library, with each register filled: its result, and how many words and vectors it changes. */
static void registers(void)
{
    static struct registers before, after;
    int words = 0, vectors = 0;
    for (int i = 0; i < WORDS; i++)
        before.words[i] = 0x1111111100000001u * (unsigned)(i + 1);
    before.words[0] = 0xffffffff;
    for (int i = 0; i < VECTORS; i++)
        memset(before.vectors[i], 0x31 + i, sizeof before.vectors[i]);
    long result = close_with(&before, &after);
    for (int i = 0; i < WORDS; i++)
        words += before.words[i] != after.words[i];
    for (int i = 0; i < VECTORS; i++)
        vectors += memcmp(before.vectors[i], after.vectors[i], sizeof before.vectors[i]) != 0;
    printf("registers: %ld %d %d\n", result, words, vectors);
}

/* The end of the data goes up, down and up again; what is taken anew is zero. */
static void data(void)
{
    enum { PAGES = 5 * 4096 };
    unsigned char *begin = (unsigned char *)raw(SYS_brk, 0, 0, 0, 0);
    unsigned char *end = (unsigned char *)raw(SYS_brk, (long)(begin + PAGES), 0, 0, 0);
    memset(begin, 7, PAGES);
    int grown = end == begin + PAGES;
    int shrunk = raw(SYS_brk, (long)(begin + 100), 0, 0, 0) == (long)(begin + 100);
    int refused = raw(SYS_brk, (long)((uintptr_t)1 << 46), 0, 0, 0) == (long)(begin + 100);
    raw(SYS_brk, (long)(begin + PAGES), 0, 0, 0);
    unsigned long sum = 0;
    for (int i = 2 * 4096; i < PAGES; i++)
        sum += begin[i];
    printf("data: %d %d %d %lu %d\n", grown, shrunk, refused, sum, begin[50]);
    raw(SYS_brk, (long)begin, 0, 0, 0);
}

static void start(void)
{
    const Elf64_Phdr *headers = (const void *)getauxval(AT_PHDR);
    unsigned long loaded = 0;
    for (unsigned long i = 0; i < getauxval(AT_PHNUM); i++)
        loaded += headers[i].p_type == PT_LOAD;
    printf("start: %d %d %lu %lu %s\n", getauxval(AT_ENTRY) == (uintptr_t)_start, loaded > 1, getauxval(AT_PHENT),
           getauxval(AT_BASE), (const char *)getauxval(AT_EXECFN));
}

static void pointers(void)
{
    uintptr_t pointer = 0, self;
    __asm__("mov %%fs:0, %0" : "=r"(self));
    long got = raw(SYS_arch_prctl, ARCH_GET_FS, (long)&pointer, 0, 0);
    long set = raw(SYS_arch_prctl, ARCH_SET_FS, (long)pointer, 0, 0);
    printf("pointers: %ld %d %ld %d\n", got, pointer == self, set, own);
    printf("thread: %d\n", raw(SYS_set_tid_address, 0, 0, 0, 0) == raw(SYS_gettid, 0, 0, 0, 0));
}

static sigjmp_buf place;
static volatile int seen, seen_own;

static void handle(int number)
{
    seen = number;
    seen_own = own;
}

static void escape(int number)
{
    handle(number);
    siglongjmp(place, 1);
}

/* Whether the handler of faults runs, and with this program's own variables. */
static int faults(void)
{
    volatile int *closed = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    seen = seen_own = 0;
    if (sigsetjmp(place, 1) == 0)
        *closed = 1;
    return seen == SIGSEGV && seen_own == own;
}

static const char *name_of(void (*handler)(int))
{
    return handler == handle ? "handle" : handler == escape ? "escape" : handler == SIG_DFL ? "default" : "other";
}

static void actions(void)
{
    struct sigaction old, new = {.sa_handler = handle, .sa_flags = SA_RESTART};
    sigaddset(&new.sa_mask, SIGUSR2);
    printf("actions:");
    for (int i = 0; i < 2; i++) {
        sigaction(SIGUSR1, &new, &old);
        printf(" %s %d %d", name_of(old.sa_handler), (old.sa_flags & SA_RESTART) != 0, sigismember(&old.sa_mask, SIGUSR2));
        new.sa_handler = escape;
    }
    sigaction(SIGUSR1, NULL, &old);
    new.sa_handler = handle;
    sigaction(SIGUSR1, &new, NULL);
    raise(SIGUSR1);
    printf(" %s %d %d", name_of(old.sa_handler), seen == SIGUSR1, seen_own);
    sigaction(SIGSEGV, &(struct sigaction){.sa_handler = escape}, &old);
    printf(" %s %d", name_of(old.sa_handler), faults());
    sigaction(SIGSEGV, NULL, &old);
    printf(" %s %s", name_of(old.sa_handler), sigaction(SIGKILL, &new, NULL) ? strerror(errno) : "none");
    printf(" %ld\n", raw(SYS_rt_sigaction, 65, 0, 0, 8));
}

/* The child has the parent's memory, but actions, and a thread pointer, of its own. */
static void sleeping(void)
{
    static volatile int written;
    struct sigaction now;
    int status = 0;
    pid_t pid = vfork();
    if (pid == 0) {
        struct sigaction action = {.sa_handler = SIG_IGN};
        sigaction(SIGUSR1, &action, NULL);
        sigaction(SIGSEGV, &action, NULL);
        written = own;
        _exit(33);
    }
    waitpid(pid, &status, 0);
    sigaction(SIGUSR1, NULL, &now);
    seen = 0;
    raise(SIGUSR1);
    printf("sleeping: %d %d %s %d %d", WEXITSTATUS(status), written, name_of(now.sa_handler), seen == SIGUSR1, own);
    printf(" %d\n", faults());
}

/* The kernel writes the child's number where the C library finds it, in the child alone. */
static void forked(void)
{
    static volatile int word = 3;
    int status = 0;
    int pid = (int)raw(SYS_clone, CLONE_CHILD_SETTID | SIGCHLD, 0, 0, (long)&word);
    if (pid == 0)
        raw(SYS_exit_group, word == (int)raw(SYS_gettid, 0, 0, 0, 0) ? 35 : 1, 0, 0, 0);
    waitpid(pid, &status, 0);
    printf("forked: %d %d\n", WEXITSTATUS(status), word);
}

struct found {
    sigset_t mask;
    int own, tid;
};

static void *look(void *argument)
{
    struct found *found = argument;
    pthread_sigmask(SIG_BLOCK, NULL, &found->mask);
    found->own = own;
    own = 6;
    found->tid = (int)syscall(SYS_gettid) != getpid();
    return argument;
}

static void threads(void)
{
    struct found found = {0};
    sigset_t some;
    pthread_t thread;
    void *result = NULL;
    sigemptyset(&some);
    sigaddset(&some, SIGUSR2);
    pthread_sigmask(SIG_SETMASK, &some, NULL);
    int made = pthread_create(&thread, NULL, look, &found);
    pthread_join(thread, &result);
    sigset_t mask;
    pthread_sigmask(SIG_SETMASK, NULL, &mask);
    printf("threads: %d %d %d %d %d", made, result == &found, found.own, found.tid, own);
    printf(" %d %d %d %d\n", sigismember(&found.mask, SIGUSR2), sigismember(&found.mask, SIGUSR1), sigismember(&mask, SIGUSR2),
           sigismember(&mask, SIGTERM));
}

static struct {
    char stack[65536];
    sigset_t mask;
    int maker_word, end_word;
} bare;

static int look_barely(void *argument)
{
    raw(SYS_rt_sigprocmask, SIG_SETMASK, 0, (long)argument, 8);
    raw(SYS_exit, 0, 0, 0, 0);
    return 0;
}

/* A thread that no C library has made: no signal is blocked for it but those of its maker. */
static void bare_thread(void)
{
    sigset_t some, mask;
    sigemptyset(&some);
    sigaddset(&some, SIGUSR2);
    pthread_sigmask(SIG_SETMASK, &some, NULL);
    bare.end_word = 1;
    int flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM | CLONE_PARENT_SETTID |
                CLONE_CHILD_CLEARTID;
    int tid = clone(look_barely, bare.stack + sizeof bare.stack, flags, &bare.mask, &bare.maker_word, NULL, &bare.end_word);
    while (__atomic_load_n(&bare.end_word, __ATOMIC_SEQ_CST) != 0)
        raw(SYS_futex, (long)&bare.end_word, 0, 1, 0);
    pthread_sigmask(SIG_SETMASK, NULL, &mask);
    printf("bare thread: %d", tid > 0 && tid == bare.maker_word);
    printf(" %d %d %d %d\n", sigismember(&bare.mask, SIGUSR2), sigismember(&bare.mask, SIGUSR1), sigismember(&mask, SIGUSR2),
           sigismember(&mask, SIGTERM));
}

static void files(void)
{
    char link[2][4096] = {{0}, {0}};
    long lengths[] = {
        raw(SYS_readlink, (long)"/proc/self/exe", (long)link[0], 4095, 0),
        raw(SYS_readlinkat, AT_FDCWD, (long)"/proc/self/exe", (long)link[1], 4095),
    };
    int opened[] = {
        (int)raw(SYS_open, (long)"/proc/self/exe", O_RDONLY, 0, 0),
        (int)raw(SYS_openat, AT_FDCWD, (long)"/proc/self/exe", O_RDONLY, 0),
    };
    Elf64_Ehdr file[2];
    memset(file, 0, sizeof file);
    for (int i = 0; i < 2; i++) {
        if (read(opened[i], &file[i], sizeof file[i]) != sizeof file[i])
            exit(3);
        close(opened[i]);
    }
    printf("files: %s %d %d %d\n", link[0], strcmp(link[0], link[1]) == 0 && lengths[0] == (long)strlen(link[0]),
           lengths[0] == lengths[1],
           file[0].e_phnum == getauxval(AT_PHNUM) && memcmp(&file[0], &file[1], sizeof file[0]) == 0);
}

int main(void)
{
    /* From its first socket on the library handles faults, too. */
    if (socket(AF_INET, SOCK_STREAM, 0) < 0)
        return 2;
    void (*parts[])(void) = {registers, data, start, pointers, actions, sleeping, forked, threads, bare_thread, files};
    for (unsigned i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        parts[i]();
        fflush(stdout);
    }
    errno = 0;
    raw(SYS_close, -1, 0, 0, 0);
    printf("end: %d\n", errno);
    return 0;
}
