/* Programs that confine themselves: after that, a connection may make the system calls that TCP would make, and no other. */

#include "calls.h"

#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <sys/prctl.h>

#define MOST_CALLS 128

/* A list of permitted system calls that ends with -1, and what becomes of all others. */
struct filter {
    const int *permitted;
    uint32_t others;
};

static const int bytes_only[] = {SYS_read, SYS_write,      SYS_recvfrom, SYS_sendto,       SYS_poll, SYS_epoll_wait,
                                 SYS_exit, SYS_exit_group, SYS_rt_sigreturn, -1};

static void assemble(struct filter filter, struct sock_fprog *program)
{
    static struct sock_filter code[2 * MOST_CALLS + 2];
    size_t n = 0;
    code[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    for (const int *number = filter.permitted; *number >= 0; number++) {
        code[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, *number, 0, 1);
        code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    }
    code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, filter.others);
    *program = (struct sock_fprog){.len = n, .filter = code};
}

static void install(struct filter filter)
{
    struct sock_fprog program;
    assemble(filter, &program);
    must(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    must(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
}

static void install_in_all_threads(struct filter filter)
{
    struct sock_fprog program;
    assemble(filter, &program);
    must(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    must(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program));
}

/* Prints without standard I/O, which allocates. */
static void print(const char *text)
{
    must(write(1, text, strlen(text)));
}

/* `work` in a child, where a filter kills nobody else. */
static void in_child(void (*work)(void))
{
    fflush(stdout);
    pid_t child = must(fork());
    if (child == 0) {
        alarm(LONGEST_S);
        work();
        fflush(stdout);
        _exit(0);
    }
    int status;
    must(waitpid(child, &status, 0));
    printf("status %d\n", WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status));
}

/* Each way, with nothing but read and write; and both ends. */
static void read_and_write(struct connection c)
{
    char bytes[8] = {0};
    for (int i = 0; i < 100; i++) {
        must(write(c.client, "request", 7));
        if (must(read(c.server, bytes, 7)) != 7 || memcmp(bytes, "request", 7) != 0)
            print("other bytes\n");
        must(write(c.server, "answers", 7));
        if (must(read(c.client, bytes, 7)) != 7 || memcmp(bytes, "answers", 7) != 0)
            print("other bytes\n");
    }
    print("read and written\n");
}

static void strict_child(void)
{
    struct connection c = linked();
    send_text(c.client, "unread");
    must(prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT));
    char bytes[6];
    if (read(c.server, bytes, 6) == 6 && memcmp(bytes, "unread", 6) == 0)
        print("what was unread is there\n");
    read_and_write(c);
    /* exit_group is not permitted. */
    syscall(SYS_exit, 0);
}

static void sandbox_strict(void)
{
    in_child(strict_child);
}

/* By every call of the list, with an instance whose interests were made before. */
static void bytes_after_filter(uint32_t others)
{
    struct connection c = linked(), once = linked(), edge = linked();
    int instance = must(epoll_create1(0));
    struct epoll_event e = {EPOLLIN, {.u64 = 0x123456789abcdef0}};
    must(epoll_ctl(instance, EPOLL_CTL_ADD, c.server, &e));
    e = (struct epoll_event){EPOLLIN | EPOLLONESHOT, {.u64 = 2}};
    must(epoll_ctl(instance, EPOLL_CTL_ADD, once.server, &e));
    e = (struct epoll_event){EPOLLIN | EPOLLET, {.u64 = 3}};
    must(epoll_ctl(instance, EPOLL_CTL_ADD, edge.server, &e));
    /* The interest for one shot is used up before, the edge is not. */
    send_text(once.client, "once");
    if (must(epoll_wait(instance, &e, 1, PATIENCE_MS)) != 1 || e.data.u64 != 2)
        print("not the one shot\n");
    install((struct filter){bytes_only, others});
    must(sendto(c.client, "hello", 5, 0, NULL, 0));
    if (must(epoll_wait(instance, &e, 1, PATIENCE_MS)) != 1 || e.data.u64 != 0x123456789abcdef0)
        print("not what was registered\n");
    char bytes[8];
    if (must(recvfrom(c.server, bytes, 5, 0, NULL, NULL)) != 5)
        print("not five bytes\n");
    struct pollfd p[2] = {{.fd = c.client, .events = POLLIN}, {.fd = once.server, .events = POLLIN}};
    if (must(poll(p, 2, PATIENCE_MS)) != 1 || p[1].revents != POLLIN)
        print("the unread bytes are not there\n");
    if (must(epoll_wait(instance, &e, 1, 0)) != 0)
        print("a second shot\n");
    must(sendto(edge.client, "edge", 4, 0, NULL, 0));
    if (must(epoll_wait(instance, &e, 1, PATIENCE_MS)) != 1 || e.data.u64 != 3)
        print("no edge\n");
    if (must(epoll_wait(instance, &e, 1, 0)) != 0)
        print("the same edge twice\n");
    read_and_write(c);
}

static void killing_child(void)
{
    bytes_after_filter(SECCOMP_RET_KILL_PROCESS);
    syscall(SYS_exit_group, 0);
}

static void sandbox_kills(void)
{
    in_child(killing_child);
}

static void thread_killing_child(void)
{
    bytes_after_filter(SECCOMP_RET_KILL_THREAD);
    syscall(SYS_exit_group, 0);
}

static void sandbox_kills_thread(void)
{
    in_child(thread_killing_child);
}

static void failing_child(void)
{
    bytes_after_filter(SECCOMP_RET_ERRNO | ENOTUNIQ);
    if (syscall(SYS_getppid) != -1 || errno != ENOTUNIQ)
        print("a call that is not permitted does not fail\n");
}

static void sandbox_fails(void)
{
    in_child(failing_child);
}

static volatile sig_atomic_t trapped;

static void on_trap(int signal)
{
    (void)signal;
    trapped++;
}

static void trapping_child(void)
{
    struct sigaction action = {.sa_handler = on_trap};
    must(sigaction(SIGSYS, &action, NULL));
    bytes_after_filter(SECCOMP_RET_TRAP);
    if (trapped != 0)
        print("a call was made that the program did not ask for\n");
    syscall(SYS_getppid);
    print(trapped == 1 ? "trapped once\n" : "not trapped once\n");
    syscall(SYS_exit_group, 0);
}

static void sandbox_traps(void)
{
    in_child(trapping_child);
}

static struct connection of_thread;
/* From the thread that installs the filter to the other one, and back. */
static int to_thread[2], from_thread[2];

static void *echo(void *unused)
{
    char bytes[8];
    pid_t self = thread_id();
    must(write(from_thread[1], &self, sizeof self));
    must(read(to_thread[0], bytes, 1));
    for (ssize_t n; (n = must(read(of_thread.server, bytes, sizeof bytes))) > 0;)
        must(write(of_thread.server, bytes, n));
    print("the thread saw the end\n");
    must(write(from_thread[1], "!", 1));
    syscall(SYS_exit, 0);
    return unused;
}

/* A thread of the program that did not install the filter moves bytes. */
static void with_thread(void (*confine)(struct filter), const int *permitted)
{
    of_thread = linked();
    must(pipe(to_thread));
    must(pipe(from_thread));
    pthread_t thread;
    if (pthread_create(&thread, NULL, echo, NULL) != 0)
        die("pthread_create");
    /* It makes calls of its own when it begins. */
    pid_t started;
    must(read(from_thread[0], &started, sizeof started));
    await_sleep(started);
    confine((struct filter){permitted, SECCOMP_RET_KILL_PROCESS});
    must(write(to_thread[1], "!", 1));
    char bytes[8];
    for (int i = 0; i < 100; i++) {
        must(write(of_thread.client, "request", 7));
        for (ssize_t done = 0; done < 7;)
            done += must(read(of_thread.client, bytes + done, 7 - done));
        if (memcmp(bytes, "request", 7) != 0)
            print("other bytes\n");
    }
    must(shutdown(of_thread.client, SHUT_WR));
    must(read(from_thread[0], bytes, 1));
    print("echoed\n");
    syscall(SYS_exit_group, 0);
}

static const int with_shutdown[] = {SYS_read, SYS_write, SYS_poll, SYS_shutdown, SYS_exit, SYS_exit_group, -1};

static void threads_child(void)
{
    with_thread(install_in_all_threads, with_shutdown);
}

static void sandbox_all_threads(void)
{
    in_child(threads_child);
}

static void one_thread_child(void)
{
    with_thread(install, with_shutdown);
}

static void sandbox_one_thread(void)
{
    in_child(one_thread_child);
}

static const int with_children[] = {SYS_read,   SYS_write, SYS_clone,           SYS_vfork,    SYS_wait4,
                                    SYS_gettid, SYS_close, SYS_set_robust_list, SYS_exit_group, SYS_rt_sigprocmask,
                                    SYS_dup2,   -1};

static void forking_child(void)
{
    struct connection c = linked(), other = linked();
    install((struct filter){with_children, SECCOMP_RET_KILL_PROCESS});
    pid_t child = must(fork());
    if (child == 0) {
        read_and_write(c);
        must(close(c.server));
        must(dup2(other.client, c.client));
        must(write(c.client, "by number", 9));
        syscall(SYS_exit_group, 0);
    }
    char bytes[9];
    for (ssize_t done = 0; done < 9;)
        done += must(read(other.server, bytes + done, 9 - done));
    must(syscall(SYS_wait4, child, NULL, 0, NULL));
    read_and_write(c);
    child = must(vfork());
    if (child == 0)
        syscall(SYS_exit_group, 0);
    must(syscall(SYS_wait4, child, NULL, 0, NULL));
    print("children have ended\n");
    _exit(0);
}

static void sandbox_then_fork(void)
{
    in_child(forking_child);
}

/* In the child of a server that forks: the connection came from the parent, which has it on a link. */
static void inherited_child(void)
{
    struct connection c = linked();
    pid_t child = must(fork());
    if (child == 0) {
        install((struct filter){bytes_only, SECCOMP_RET_KILL_PROCESS});
        read_and_write(c);
        syscall(SYS_exit_group, 0);
    }
    int status;
    must(waitpid(child, &status, 0));
    show("child", status);
    exchange_often(c, 2);
}

static void sandbox_inherits(void)
{
    in_child(inherited_child);
}

static const int with_sockets[] = {SYS_read,        SYS_write,      SYS_close,       SYS_socket,     SYS_connect,
                                   SYS_accept,      SYS_getsockname, SYS_setsockopt, SYS_getsockopt, SYS_epoll_create,
                                   SYS_epoll_ctl,   SYS_epoll_wait, SYS_exit_group,  SYS_select,     SYS_pselect6,
                                   SYS_close_range, SYS_dup,        SYS_fcntl,       SYS_recvmsg,    SYS_sendmsg, -1};

static void accepting_child(void)
{
    int listener = listener_on("127.0.0.1");
    struct connection before = connection_by(listener, "127.0.0.1");
    warm(before);
    install((struct filter){with_sockets, SECCOMP_RET_KILL_PROCESS});
    struct connection c = connection_by(listener, "127.0.0.1");
    read_and_write(c);
    read_and_write(before);
    int instance = must(epoll_create(1));
    struct epoll_event e = {EPOLLIN, {.u64 = 77}};
    must(epoll_ctl(instance, EPOLL_CTL_ADD, c.server, &e));
    must(write(c.client, "x", 1));
    if (must(epoll_wait(instance, &e, 1, PATIENCE_MS)) != 1 || e.data.u64 != 77)
        print("no event\n");
    fd_set set;
    FD_ZERO(&set);
    FD_SET(c.server, &set);
    if (must(select(c.server + 1, &set, NULL, NULL, NULL)) != 1)
        print("not selected\n");
    char bytes[CMSG_SPACE(sizeof(int))] = {0}, byte;
    struct iovec v = {&byte, 1};
    struct msghdr message = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = bytes, .msg_controllen = sizeof bytes};
    must(recvmsg(c.server, &message, 0));
    int copy = must(dup(c.server));
    must(fcntl(copy, F_GETFD));
    must(close_range(copy, ~0u, 0));
    set_int(c.client, IPPROTO_TCP, TCP_NODELAY, 1);
    must(close(c.client));
    if (must(read(c.server, &byte, 1)) != 0)
        print("no end\n");
    print("accepted\n");
    _exit(0);
}

static void sandbox_accepts(void)
{
    in_child(accepting_child);
}

/* What a filter forbids that only forbids what links have no use for; also one that is put upon another. */
static void forbid(uint32_t number)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof code / sizeof *code, .filter = code};
    must(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    must(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
}

static void permitting_child(void)
{
    struct connection c = linked();
    forbid(SYS_ptrace);
    forbid(SYS_reboot);
    exchange_often(c, 3);
    exchange_often(linked(), 2);
}

static void sandbox_permits(void)
{
    in_child(permitting_child);
}

/* Exactly what the library says that it needs, and what this program does besides. Everything that is not in this list
 * kills. */
static const int needs[] = {
    SYS_read, SYS_write, SYS_recvfrom, SYS_sendto, SYS_recvmsg, SYS_sendmsg, SYS_shutdown, SYS_getsockopt,
    SYS_setsockopt, SYS_getsockname, SYS_getpeername, SYS_ioctl, SYS_futex, SYS_ppoll, SYS_poll, SYS_epoll_wait,
    SYS_epoll_pwait, SYS_epoll_ctl, SYS_epoll_create1, SYS_eventfd2, SYS_signalfd4, SYS_rt_sigaction,
    SYS_rt_sigprocmask, SYS_rt_sigtimedwait, SYS_rt_sigpending, SYS_clock_nanosleep, SYS_clock_gettime, SYS_sched_yield, SYS_socket, SYS_connect, SYS_accept4,
    SYS_memfd_create, SYS_ftruncate, SYS_mmap, SYS_munmap, SYS_mprotect, SYS_madvise, SYS_brk, SYS_mremap, SYS_close,
    SYS_fcntl, SYS_dup3, SYS_dup, SYS_prlimit64, SYS_getpid, SYS_gettid, SYS_geteuid, SYS_openat, SYS_fstat,
    SYS_newfstatat, SYS_lseek, SYS_getrandom, SYS_set_robust_list, SYS_exit, SYS_rt_sigreturn,
    /* Those that may also fail. */
    SYS_statx, SYS_clone3, SYS_clone, SYS_rseq, SYS_epoll_pwait2, SYS_pidfd_open, SYS_bind, SYS_listen,
    SYS_sched_getattr, SYS_sched_setattr, SYS_sched_setaffinity, SYS_sched_getaffinity, SYS_nanosleep, SYS_getdents64, SYS_readlinkat,
    SYS_unlinkat, SYS_mkdirat, SYS_flock, SYS_fchmod, SYS_membarrier, SYS_prctl, SYS_sigaltstack, SYS_fallocate, SYS_fstatfs,
    SYS_mlock, SYS_tgkill, SYS_readlink, SYS_rmdir, SYS_mkdir, SYS_pread64, SYS_process_vm_readv,
    SYS_rt_tgsigqueueinfo,
    /* The program's. */
    SYS_accept, SYS_exit_group, SYS_wait4, -1};

static void minimal_child(void)
{
    struct connection c = linked();
    int instance = must(epoll_create1(0));
    struct epoll_event e = {EPOLLIN, {.u64 = 5}};
    must(epoll_ctl(instance, EPOLL_CTL_ADD, c.server, &e));
    install_in_all_threads((struct filter){needs, SECCOMP_RET_KILL_PROCESS});
    exchange_often(c, 3);
    /* One that is promoted under the filter, waits, and is forked. */
    struct connection young = linked();
    exchange_often(young, 3);
    send_text(c.client, "event");
    show("events", epoll_wait(instance, &e, 1, PATIENCE_MS));
    struct pollfd p = {.fd = young.server, .events = POLLIN};
    show("polled", poll(&p, 1, 20));
    fflush(stdout);
    pid_t child = must(fork());
    if (child == 0) {
        exchange(young);
        fflush(stdout);
        _exit(0);
    }
    int status;
    must(waitpid(child, &status, 0));
    show("child", status);
    exchange(young);
    must(close(young.client));
    show("end", recv(young.server, &e, 1, 0));
}

static void sandbox_needs(void)
{
    in_child(minimal_child);
}

/* Whether there are filters is asked in this way, and what the kernel refuses changes nothing. */
static void sandbox_probes(void)
{
    struct connection c = linked();
    show("no filter", prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, NULL));
    show("nowhere", prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, 4096));
    show("by seccomp", syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, NULL));
    show("with flags", syscall(SYS_seccomp, SECCOMP_SET_MODE_STRICT, 1, NULL));
    show("another mode", prctl(PR_SET_SECCOMP, 77, NULL));
    struct sock_filter never_ends[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0)};
    struct sock_fprog program = {.len = 1, .filter = never_ends};
    must(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    show("not a filter", prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
    program.len = 0;
    show("empty", prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
    show("mode", prctl(PR_GET_SECCOMP));
    exchange_often(c, 3);
}

/* The list of OpenSSH's unprivileged process: a few calls fail, some have arguments that must be certain ones, all others
 * kill. */
static void openssh_child(void)
{
    struct connection c = linked();
#define PERMIT(number) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)
#define DENY(number, error)                                                                                            \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (error))
#define PERMIT_PROT(number)                                                                                            \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 6),                                                                 \
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2])),                                    \
        BPF_STMT(BPF_ALU | BPF_AND | BPF_K, ~(uint32_t)3), BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0, 0, 1),               \
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),                                                                  \
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)), BPF_STMT(BPF_MISC | BPF_TAX, 0)
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        DENY(SYS_open, EACCES), DENY(SYS_openat, EACCES), DENY(SYS_newfstatat, EACCES), DENY(SYS_stat, EACCES),
        PERMIT(SYS_brk), PERMIT(SYS_clock_gettime), PERMIT(SYS_close), PERMIT(SYS_exit), PERMIT(SYS_exit_group),
        PERMIT(SYS_futex), PERMIT(SYS_getpgid), PERMIT(SYS_getpid), PERMIT(SYS_getrandom), PERMIT(SYS_gettid),
        PERMIT(SYS_gettimeofday), PERMIT(SYS_getuid), PERMIT(SYS_madvise), PERMIT_PROT(SYS_mmap), PERMIT(SYS_mremap),
        PERMIT_PROT(SYS_mprotect), PERMIT(SYS_munmap), PERMIT(SYS_nanosleep), PERMIT(SYS_clock_nanosleep),
        PERMIT(SYS_poll), PERMIT(SYS_ppoll), PERMIT(SYS_pselect6), PERMIT(SYS_read), PERMIT(SYS_rt_sigprocmask),
        PERMIT(SYS_select), PERMIT(SYS_shutdown), PERMIT(SYS_sigaltstack), PERMIT(SYS_write), PERMIT(SYS_writev),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    struct sock_fprog program = {.len = sizeof code / sizeof *code, .filter = code};
    must(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    must(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
    read_and_write(c);
    struct pollfd p = {.fd = c.server, .events = POLLIN};
    show("polled", poll(&p, 1, 10));
    show("opened", open("/dev/null", O_RDONLY));
    must(shutdown(c.client, SHUT_WR));
    char byte;
    show("end", read(c.server, &byte, 1));
    must(close(c.server));
}

static void sandbox_openssh(void)
{
    in_child(openssh_child);
}

/* A namespace of users is for a process of one thread. */
static void unsharing_child(void)
{
    struct connection c = linked();
    show("unshared", unshare(CLONE_NEWUSER));
    read_and_write(c);
    exchange(c);
}

static void sandbox_unshares(void)
{
    in_child(unsharing_child);
}

/* A server that gives up its root directory and its user once it has its connections. */
static void dropping_child(void)
{
    struct connection c = linked();
    must(chdir("/proc"));
    show("root", chroot("/proc/self/fdinfo"));
    show("group", setgid(65534));
    show("user", setuid(65534));
    exchange_often(c, 5);
    /* Its counters cannot be written any more. */
    warm(c);
    must(shutdown(c.client, SHUT_WR));
    char byte;
    show("end", recv(c.server, &byte, 1, 0));
}

static void drops_privileges(void)
{
    in_child(dropping_child);
}

/* What a program does that was started with a filter. */
static void under_filter(void)
{
    struct connection c = linked();
    exchange_often(c, 3);
    fflush(stdout);
    pid_t child = must(fork());
    if (child == 0) {
        exchange(c);
        fflush(stdout);
        _exit(0);
    }
    int status;
    must(waitpid(child, &status, 0));
    show("child", status);
    must(close(c.client));
    char byte;
    show("end", recv(c.server, &byte, 1, 0));
}

/* Starts this program anew, with a filter on it: on a link in the end only if that `permits` links. */
static void start_with(uint32_t number, uint32_t verdict, bool permits)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, verdict),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof code / sizeof *code, .filter = code};
    must(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    must(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
    must(execl("/proc/self/exe", "calls", "under_filter", permits ? rounds_text() : "0", NULL));
}

static void started_with_killer(void)
{
    start_with(SYS_memfd_create, SECCOMP_RET_KILL_PROCESS, false);
}

static void started_with_trap(void)
{
    start_with(SYS_statx, SECCOMP_RET_TRAP, false);
}

static void started_with_error(void)
{
    start_with(SYS_eventfd2, SECCOMP_RET_ERRNO | EPERM, false);
}

static void started_with_permission(void)
{
    start_with(SYS_reboot, SECCOMP_RET_KILL_PROCESS, true);
}

const struct test_case sandbox_cases[] = {
    {"under_filter", under_filter},
    {"started_with_killer", started_with_killer},
    {"started_with_trap", started_with_trap},
    {"started_with_error", started_with_error},
    {"started_with_permission", started_with_permission},
    {"sandbox_strict", sandbox_strict},
    {"sandbox_kills", sandbox_kills},
    {"sandbox_kills_thread", sandbox_kills_thread},
    {"sandbox_fails", sandbox_fails},
    {"sandbox_traps", sandbox_traps},
    {"sandbox_all_threads", sandbox_all_threads},
    {"sandbox_one_thread", sandbox_one_thread},
    {"sandbox_then_fork", sandbox_then_fork},
    {"sandbox_inherits", sandbox_inherits},
    {"sandbox_accepts", sandbox_accepts},
    {"sandbox_permits", sandbox_permits},
    {"sandbox_needs", sandbox_needs},
    {"sandbox_probes", sandbox_probes},
    {"sandbox_openssh", sandbox_openssh},
    {"sandbox_unshares", sandbox_unshares},
    {"drops_privileges", drops_privileges},
    {NULL, NULL},
};
