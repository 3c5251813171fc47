/* Loaded into the server (LD_PRELOAD): the k-th fsync, write or rename in its data folder fails, once.
 *
 * KLAMBDA_FAULT         "fsync 17", "write 3" or "rename 9"
 * KLAMBDA_FAULT_FOLDER  the data folder
 * KLAMBDA_FAULT_TOLD    a file that gets a line when it has happened
 *
 * It is counted over all threads, which tracing a process cannot do. An fsync that fails takes back what was written
 * to the file since the last one that did not, as a disk may: what was acknowledged on its strength is then lost for
 * certain. A write that fails has written its first half. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

struct undo {
    struct undo *before;
    dev_t device;
    ino_t inode;
    off_t offset, old_size;
    size_t length;
    unsigned long turn;
    char old[];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct undo *undos;
static unsigned long turn;
static long left = -1;
static char kind[16];
static const char *folder;

__attribute__((constructor)) static void begin(void) {
    const char *fault = getenv("KLAMBDA_FAULT");
    folder = getenv("KLAMBDA_FAULT_FOLDER");
    if (!fault || !folder || sscanf(fault, "%15s %ld", kind, &left) != 2) abort();
}

static int is_ours(const char *path) {
    return strncmp(path, folder, strlen(folder)) == 0;
}

static int is_ours_fd(int fd) {
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    const char *name = strrchr(path, '/');
    return is_ours(path) && strcmp(name ? name : "", "/lock") != 0;
}

/* Whether this operation is the one. */
static int strikes(const char *what, const char *where) {
    if (strcmp(kind, what) != 0) return 0;
    if (left <= 0 || --left > 0) return 0;
    int told = open(getenv("KLAMBDA_FAULT_TOLD"), O_WRONLY | O_CREAT | O_APPEND, 0600);
    dprintf(told, "%s of %s\n", what, where);
    close(told);
    return 1;
}

static const char *name_of(int fd) {
    static __thread char path[PATH_MAX];
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    path[length < 0 ? 0 : length] = 0;
    return path;
}

static void remember(int fd, size_t length, off_t offset) {
    struct stat stat;
    struct undo *undo = malloc(sizeof *undo + length);
    if (!undo || fstat(fd, &stat) != 0) abort();
    ssize_t old = pread(fd, undo->old, length, offset);
    *undo = (struct undo){ undos, stat.st_dev, stat.st_ino, offset, stat.st_size, old < 0 ? 0 : old, turn };
    undos = undo;
}

/* What was written to the file before this turn: it is durable, or gone. */
static void settle(int fd, unsigned long before, int take_back) {
    struct stat stat;
    if (fstat(fd, &stat) != 0) abort();
    ssize_t (*real)(int, const void *, size_t, off_t) = dlsym(RTLD_NEXT, "pwrite64");
    struct undo **at = &undos;
    while (*at) {
        struct undo *undo = *at;
        if (undo->device != stat.st_dev || undo->inode != stat.st_ino || (undo->turn >= before && !take_back)) {
            at = &undo->before;
            continue;
        }
        if (take_back) {
            real(fd, undo->old, undo->length, undo->offset);
            if (ftruncate(fd, undo->old_size) != 0) abort();
        }
        *at = undo->before;
        free(undo);
    }
}

static int sync_with(const char *function, int fd) {
    int (*real)(int) = dlsym(RTLD_NEXT, function);
    if (!is_ours_fd(fd)) return real(fd);
    struct stat stat;
    int is_file = fstat(fd, &stat) == 0 && S_ISREG(stat.st_mode);
    pthread_mutex_lock(&lock);
    unsigned long before = ++turn;
    int strike = strikes("fsync", name_of(fd));
    if (strike && is_file) settle(fd, before, 1);
    pthread_mutex_unlock(&lock);
    if (strike) {
        errno = EIO;
        return -1;
    }
    int result = real(fd);
    pthread_mutex_lock(&lock);
    if (result == 0 && is_file) settle(fd, before, 0);
    pthread_mutex_unlock(&lock);
    return result;
}

int fsync(int fd) {
    return sync_with("fsync", fd);
}

int fdatasync(int fd) {
    return sync_with("fdatasync", fd);
}

ssize_t pwrite64(int fd, const void *bytes, size_t length, off_t offset) {
    ssize_t (*real)(int, const void *, size_t, off_t) = dlsym(RTLD_NEXT, "pwrite64");
    if (!is_ours_fd(fd)) return real(fd, bytes, length, offset);
    pthread_mutex_lock(&lock);
    int strike = strikes("write", name_of(fd));
    remember(fd, length, offset);
    ssize_t result = real(fd, bytes, strike ? length / 2 : length, offset);
    pthread_mutex_unlock(&lock);
    if (strike) {
        errno = EIO;
        return -1;
    }
    return result;
}

ssize_t pwrite(int fd, const void *bytes, size_t length, off_t offset) {
    return pwrite64(fd, bytes, length, offset);
}

int rename(const char *from, const char *to) {
    int (*real)(const char *, const char *) = dlsym(RTLD_NEXT, "rename");
    pthread_mutex_lock(&lock);
    int strike = is_ours(from) && strikes("rename", to);
    pthread_mutex_unlock(&lock);
    if (strike) {
        errno = EIO;
        return -1;
    }
    return real(from, to);
}
