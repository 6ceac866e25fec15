/* Meets a fault at the n-th operation on files below a folder: a kill, or an error of the disk.

   Loaded with LD_PRELOAD, armed by a call of `chaos_arm`. What counts: creating, writing, syncing,
   renaming, linking and deleting. With a journal, each operation is written down, and what a
   renaming or deleting would lose is kept under a second name, so that a power cut can be played
   afterwards. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static char root[PATH_MAX], journal[PATH_MAX];
static long countdown, count;
static int action, times, journal_fd = -1;
enum { COUNT, KILL, TEAR, FAIL_EIO, FAIL_ENOSPC, HANGUP, USER, TERMINATE };
static int lacks; /* what the file system has none of: a sum of these */
enum { FLOCK = 1, POSIX_LOCKS = 2, LINKS = 4 };

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

long chaos_count(void) { return count; }

/* From now on: the n-th operation below `folder` meets `what`, and so do `more` after it. */
void chaos_arm(const char *folder, long n, int what, int more, const char *log) {
    snprintf(root, sizeof root, "%s", folder);
    snprintf(journal, sizeof journal, "%s", log ? log : "");
    countdown = n; count = 0; action = what; times = more + 1;
    if (journal[0])
        journal_fd = syscall(SYS_openat, AT_FDCWD, journal, O_CREAT | O_APPEND | O_WRONLY | O_CLOEXEC, 0666);
}

/* From now on the process is at a place without these. */
void chaos_place(int what) { lacks = what; }

static int is_below(const char *path) {
    size_t length = strlen(root);
    return length && !strncmp(path, root, length) && (path[length] == '/' || !path[length]);
}

static const char *path_of(int fd, char *buffer) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    long n = syscall(SYS_readlinkat, AT_FDCWD, link, buffer, PATH_MAX - 1);
    if (n <= 0) return "";
    buffer[n] = 0;
    return buffer;
}

static const char *absolute(int folder, const char *path, char *buffer) {
    if (path[0] == '/') return path;
    char base[PATH_MAX];
    if (folder == AT_FDCWD) {
        if (!getcwd(base, sizeof base)) return "";
    } else if (!*path_of(folder, base)) {
        strcpy(base, "");
        char link[64];
        snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
        path_of(folder, base);
    } else {
        char copy[PATH_MAX];
        snprintf(copy, sizeof copy, "%s", path_of(folder, buffer));
        snprintf(base, sizeof base, "%s", copy);
    }
    snprintf(buffer, PATH_MAX, "%.2000s/%.2000s", base, path);
    return buffer;
}

static void note(const char *what, const char *path, const char *other, long size) {
    if (journal_fd < 0) return;
    char line[3 * PATH_MAX];
    int n = snprintf(line, sizeof line, "%s\t%s\t%s\t%ld\n", what, path, other, size);
    syscall(SYS_write, journal_fd, line, n);
}

/* Keeps a file that is about to lose its name; gives the name it is kept under. */
static const char *keep(const char *path, char *buffer) {
    buffer[0] = 0;
    struct stat found;
    if (journal_fd < 0 || stat(path, &found) || !S_ISREG(found.st_mode)) return buffer;
    snprintf(buffer, PATH_MAX, "%.3000s.kept-%d-%ld", journal, getpid(), count);
    if (syscall(SYS_linkat, AT_FDCWD, path, AT_FDCWD, buffer, 0)) buffer[0] = 0;
    return buffer;
}

/* 0, or the errno of the fault; a kill does not return unless the write is to be torn. */
static int meet(const char *path) {
    if (!is_below(path)) return 0;
    count++;
    if (action == COUNT || --countdown > 0 || !times) return 0;
    times--;
    if (action == KILL) { syscall(SYS_kill, getpid(), SIGKILL); for (;;) pause(); }
    if (action == TEAR) return -1;
    if (action >= HANGUP) {
        kill(getpid(), action == HANGUP ? SIGHUP : action == USER ? SIGUSR1 : SIGTERM);
        return 0;
    }
    return action == FAIL_EIO ? EIO : ENOSPC;
}

static void die(void) { syscall(SYS_kill, getpid(), SIGKILL); for (;;) pause(); }

ssize_t write(int fd, const void *data, size_t size) {
    char buffer[PATH_MAX];
    const char *path = root[0] ? path_of(fd, buffer) : "";
    int fault = meet(path);
    if (fault > 0) { errno = fault; return -1; }
    if (fault < 0) { syscall(SYS_write, fd, data, size / 2); die(); }
    ssize_t done = REAL(write)(fd, data, size);
    if (is_below(path)) note("write", path, "", done);
    return done;
}

#define PWRITE(name)                                                      \
    ssize_t name(int fd, const void *data, size_t size, off_t at) {       \
        char buffer[PATH_MAX];                                            \
        const char *path = root[0] ? path_of(fd, buffer) : "";            \
        int fault = meet(path);                                           \
        if (fault > 0) { errno = fault; return -1; }                      \
        if (fault < 0) { syscall(SYS_pwrite64, fd, data, size / 2, at); die(); } \
        ssize_t done = REAL(name)(fd, data, size, at);                    \
        if (is_below(path)) note("write", path, "", done);                \
        return done;                                                      \
    }
PWRITE(pwrite)
PWRITE(pwrite64)

ssize_t writev(int fd, const struct iovec *parts, int number) {
    char buffer[PATH_MAX];
    const char *path = root[0] ? path_of(fd, buffer) : "";
    int fault = meet(path);
    if (fault > 0) { errno = fault; return -1; }
    if (fault < 0) { syscall(SYS_writev, fd, parts, number / 2); die(); }
    ssize_t done = REAL(writev)(fd, parts, number);
    if (is_below(path)) note("write", path, "", done);
    return done;
}

#define SYNC(name)                                             \
    int name(int fd) {                                         \
        char buffer[PATH_MAX];                                 \
        const char *path = root[0] ? path_of(fd, buffer) : ""; \
        int fault = meet(path);                                \
        if (fault > 0) { errno = fault; return -1; }           \
        if (fault < 0) die();                                  \
        int done = REAL(name)(fd);                             \
        if (is_below(path)) note("sync", path, "", 0);         \
        return done;                                           \
    }
SYNC(fsync)
SYNC(fdatasync)

static int renamed(int from_folder, const char *from, int to_folder, const char *to) {
    char a[PATH_MAX], b[PATH_MAX], kept[PATH_MAX];
    const char *source = absolute(from_folder, from, a), *target = absolute(to_folder, to, b);
    if (root[0] && is_below(target)) {
        int fault = meet(target);
        if (fault > 0) { errno = fault; return -1; }
        if (fault < 0) die();
        keep(target, kept);
    }
    int done = syscall(SYS_renameat2, from_folder, from, to_folder, to, 0);
    if (!done && is_below(target)) { note("rename", target, source, 0); note("kept", target, kept, 0); }
    return done;
}
int rename(const char *from, const char *to) { return renamed(AT_FDCWD, from, AT_FDCWD, to); }
int renameat(int a, const char *from, int b, const char *to) { return renamed(a, from, b, to); }

static int unlinked(int folder, const char *path, int flags) {
    char buffer[PATH_MAX], kept[PATH_MAX];
    const char *target = absolute(folder, path, buffer);
    int counts = root[0] && is_below(target);
    if (counts) {
        int fault = meet(target);
        if (fault > 0) { errno = fault; return -1; }
        if (fault < 0) die();
        keep(target, kept);
    }
    int done = syscall(SYS_unlinkat, folder, path, flags);
    if (!done && counts && !flags) note("unlink", target, kept, 0);
    return done;
}
int unlink(const char *path) { return unlinked(AT_FDCWD, path, 0); }
int unlinkat(int folder, const char *path, int flags) { return unlinked(folder, path, flags); }

static int opened(int folder, const char *path, int flags, int mode) {
    char buffer[PATH_MAX];
    const char *target = root[0] ? absolute(folder, path, buffer) : "";
    int counts = (flags & (O_CREAT | O_TRUNC)) && (flags & O_ACCMODE) != O_RDONLY && is_below(target);
    struct stat found;
    int is_new = 0;
    if (counts) {
        is_new = stat(target, &found) != 0;
        int fault = meet(target);
        if (fault > 0) { errno = fault; return -1; }
        if (fault < 0) die();
    }
    int fd = syscall(SYS_openat, folder, path, flags, mode);
    if (fd >= 0 && counts) note(is_new ? "create" : flags & O_TRUNC ? "truncate" : "open", target, "", 0);
    return fd;
}
#define OPEN(name)                                            \
    int name(const char *path, int flags, ...) {              \
        va_list rest; va_start(rest, flags);                  \
        int mode = va_arg(rest, int); va_end(rest);           \
        return opened(AT_FDCWD, path, flags, mode);           \
    }
#define OPENAT(name)                                          \
    int name(int folder, const char *path, int flags, ...) {  \
        va_list rest; va_start(rest, flags);                  \
        int mode = va_arg(rest, int); va_end(rest);           \
        return opened(folder, path, flags, mode);             \
    }
OPEN(open) OPEN(open64) OPENAT(openat) OPENAT(openat64)

int flock(int fd, int how) {
    if (lacks & FLOCK) { errno = ENOSYS; return -1; }
    return syscall(SYS_flock, fd, how);
}
static int controlled(int fd, int command, long value) {
    if ((lacks & POSIX_LOCKS) && (command == F_SETLK || command == F_SETLKW)) { errno = ENOLCK; return -1; }
    return syscall(SYS_fcntl, fd, command, value);
}
#define FCNTL(name)                                    \
    int name(int fd, int command, ...) {               \
        va_list rest; va_start(rest, command);         \
        long value = va_arg(rest, long); va_end(rest); \
        return controlled(fd, command, value);         \
    }
FCNTL(fcntl) FCNTL(fcntl64)
static int linked(int a, const char *from, int b, const char *to, int flags) {
    if (lacks & LINKS) { errno = EPERM; return -1; }
    return syscall(SYS_linkat, a, from, b, to, flags);
}
int link(const char *from, const char *to) { return linked(AT_FDCWD, from, AT_FDCWD, to, 0); }
int linkat(int a, const char *from, int b, const char *to, int flags) { return linked(a, from, b, to, flags); }
