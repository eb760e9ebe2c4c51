/* Starts itself, or a copy, by a descriptor, in the way that its argument names, and prints how the new program sees itself. That one then starts
 * itself once more, by its own link. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static char *environment[] = {"KEPT=yes", NULL};

static int start(int dir, const char *path, char **arguments, int flags)
{
    return (int)syscall(SYS_execveat, dir, path, arguments, environment, flags);
}

static int copy(const char *file)
{
    int from = open(file, O_RDONLY), to = memfd_create("copy", MFD_CLOEXEC);
    struct stat status;
    fstat(from, &status);
    for (off_t left = status.st_size; left > 0;) {
        ssize_t n = sendfile(to, from, NULL, (size_t)left);
        if (n <= 0)
            exit(3);
        left -= n;
    }
    close(from);
    return to;
}

/* Those that the program has been started with. */
static void show_descriptors(void)
{
    for (int fd = 3; fd < 64; fd++)
        if (fcntl(fd, F_GETFD) >= 0)
            printf(" %d", fd);
}

static void show(const char *name)
{
    char file[4096] = {0}, head[4] = {0};
    if (readlink("/proc/self/exe", file, sizeof file - 1) < 0)
        exit(4);
    /* Of a program that is started by its own link, this is the file under acceleration. */
    const char *execfn = strcmp(name, "again") == 0 ? "-" : (const char *)getauxval(AT_EXECFN);
    printf("%s %s %s %s", name, file, execfn, getenv("KEPT") ? "kept" : "lost");
    show_descriptors();
    int own = open("/proc/self/exe", O_RDONLY);
    printf(" %s", read(own, head, 4) == 4 && memcmp(head, "\177ELF", 4) == 0 ? "readable" : "unreadable");
    close(own);
    puts(getenv("NETACC_STATIC_PROGRAM") || getenv("NETACC_STATIC_DESCRIPTOR") ? " unclean" : " clean");
    fflush(stdout);
}

/* Whether the library is in this process; not a part of the output that is compared. */
static int is_loaded(void)
{
    static char maps[1 << 20];
    FILE *file = fopen("/proc/self/maps", "r");
    size_t len = fread(maps, 1, sizeof maps - 1, file);
    maps[len] = 0;
    fclose(file);
    return strstr(maps, "libnetacc") != NULL;
}

int main(int argc, char **argv)
{
    char file[4096] = {0}, folder[4096];
    const char *way = argc > 1 ? argv[1] : "";
    char *arguments[] = {"started", "once", NULL};
    if (strcmp(way, "once") == 0 || strcmp(way, "twice") == 0) {
        show(argv[0]);
        if (is_loaded())
            fputs("loaded\n", stderr);
        char *again[] = {"again", "twice", NULL};
        return strcmp(way, "once") == 0 ? execve("/proc/self/exe", again, environment) : 0;
    }
    if (readlink("/proc/self/exe", file, sizeof file - 1) < 0)
        return 2;
    strcpy(folder, file);
    dirname(folder);
    if (strcmp(way, "memfd") == 0)
        return fexecve(copy(file), arguments, environment);
    if (strcmp(way, "file") == 0)
        return fexecve(open(file, O_RDONLY), arguments, environment);
    if (strcmp(way, "path-only") == 0)
        return start(open(file, O_PATH | O_CLOEXEC), "", arguments, AT_EMPTY_PATH);
    if (strcmp(way, "folder") == 0)
        return start(open(folder, O_PATH | O_CLOEXEC), strrchr(file, '/') + 1, arguments, 0);
    if (strcmp(way, "absolute") == 0)
        return start(-1, file, arguments, 0);
    if (strcmp(way, "link") == 0)
        return start(-1, file, arguments, AT_SYMLINK_NOFOLLOW);
    if (strcmp(way, "copy") == 0)
        return execve(strcat(folder, "/copy"), arguments, environment);
    return 2;
}
