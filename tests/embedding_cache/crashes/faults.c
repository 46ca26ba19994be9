// Preloaded into a process (LD_PRELOAD): counts the calls by which it changes what lies below one folder, and at a
// chosen one kills it, or makes the system refuse. `faults_arm` begins a count, in the process that calls it alone.
//
// Every call is written to a log, so that what had reached the disk can be told from what had not.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { NOTHING, KILL, TORN, FULL, REFUSED };  // TORN: half of a write is done first. FULL: nothing more can be written.

static char folder[PATH_MAX];
static int log_fd = -1;
static int mode = NOTHING;
static long chosen;
static atomic_long count;

void faults_arm(const char* below, const char* log, int what, long point) {
  snprintf(folder, sizeof folder, "%s/", below);
  log_fd = (int)syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0666);
  chosen = point;
  count = 0;
  mode = what;
}

static int is_below(const char* path) { return strncmp(path, folder, strlen(folder)) == 0; }

// Writes the absolute path of what `fd`, or `name` in the folder `fd`, is.
static void resolve(int fd, const char* name, char* path) {
  char link[64];
  path[0] = 0;
  if (name && name[0] == '/') {
    snprintf(path, PATH_MAX, "%s", name);
    return;
  }
  ssize_t length;
  if (fd == AT_FDCWD) {
    length = getcwd(path, PATH_MAX) ? (ssize_t)strlen(path) : -1;
  } else {
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    length = readlink(link, path, PATH_MAX - 1);
  }
  if (length < 0) length = 0;
  path[length] = 0;
  if (name) snprintf(path + length, PATH_MAX - (size_t)length, "/%s", name);
}

static void die(void) { syscall(SYS_kill, getpid(), SIGKILL); }

static int concerns(const char* path, const char* target) {
  return mode != NOTHING && (is_below(path) || is_below(target));
}

// Notes a call, and passes its result on.
static long noted(long result, const char* what, const char* path, const char* target) {
  if (concerns(path, target)) {
    char line[2 * PATH_MAX + 32];
    int length = snprintf(line, sizeof line, "%s\t%s\t%s\n", result < 0 ? "failed" : what, path, target);
    syscall(SYS_write, log_fd, line, (size_t)length);
  }
  return result;
}

// Counts a call. Returns whether it must fail; `torn` says whether half of it may be done before the process dies.
static int fails(const char* path, const char* target, int needs_space, int* torn) {
  if (!concerns(path, target)) return 0;
  long number = atomic_fetch_add(&count, 1);
  int is_chosen = number == chosen;
  if ((mode == FULL && number >= chosen && needs_space) || (mode == REFUSED && is_chosen)) {
    noted(-1, "", path, target);
    errno = mode == FULL ? ENOSPC : EIO;
    return 1;
  }
  if (is_chosen && mode == TORN && torn) {
    *torn = 1;
  } else if (is_chosen && (mode == KILL || mode == TORN)) {
    die();
  }
  return 0;
}

ssize_t write(int fd, const void* data, size_t size) {
  char path[PATH_MAX];
  int torn = 0;
  resolve(fd, NULL, path);
  if (fails(path, "", 1, &torn)) return -1;
  if (torn) {
    syscall(SYS_write, fd, data, size / 2);
    die();
  }
  return noted(syscall(SYS_write, fd, data, size), "write", path, "");
}

static int checked_open(int fd, const char* name, int flags, int permissions) {
  char path[PATH_MAX];
  resolve(fd, name, path);
  if (!(flags & (O_CREAT | O_TRUNC))) return (int)syscall(SYS_openat, fd, name, flags, permissions);
  const char* what = syscall(SYS_faccessat, fd, name, F_OK) ? "create" : "write";
  if (fails(path, "", flags & O_CREAT, NULL)) return -1;
  return (int)noted(syscall(SYS_openat, fd, name, flags, permissions), what, path, "");
}

#define OPEN_WITH(fd)                \
  int permissions = 0;               \
  if (flags & O_CREAT) {             \
    va_list rest;                    \
    va_start(rest, flags);           \
    permissions = va_arg(rest, int); \
    va_end(rest);                    \
  }                                  \
  return checked_open(fd, name, flags, permissions)

int open(const char* name, int flags, ...) { OPEN_WITH(AT_FDCWD); }
int open64(const char* name, int flags, ...) { OPEN_WITH(AT_FDCWD); }
int openat(int fd, const char* name, int flags, ...) { OPEN_WITH(fd); }
int openat64(int fd, const char* name, int flags, ...) { OPEN_WITH(fd); }

int fsync(int fd) {
  char path[PATH_MAX];
  resolve(fd, NULL, path);
  return fails(path, "", 0, NULL) ? -1 : (int)noted(syscall(SYS_fsync, fd), "fsync", path, "");
}

static int checked_rename(int from_fd, const char* from, int to_fd, const char* to) {
  char old_path[PATH_MAX], new_path[PATH_MAX];
  resolve(from_fd, from, old_path);
  resolve(to_fd, to, new_path);
  if (fails(old_path, new_path, 0, NULL)) return -1;
  return (int)noted(syscall(SYS_renameat, from_fd, from, to_fd, to), "rename", old_path, new_path);
}

int rename(const char* from, const char* to) { return checked_rename(AT_FDCWD, from, AT_FDCWD, to); }
int renameat(int from_fd, const char* from, int to_fd, const char* to) {
  return checked_rename(from_fd, from, to_fd, to);
}

static int checked_mkdir(int fd, const char* name, mode_t permissions) {
  char path[PATH_MAX];
  resolve(fd, name, path);
  return fails(path, "", 1, NULL) ? -1 : (int)noted(syscall(SYS_mkdirat, fd, name, permissions), "create", path, "");
}

int mkdir(const char* name, mode_t permissions) { return checked_mkdir(AT_FDCWD, name, permissions); }
int mkdirat(int fd, const char* name, mode_t permissions) { return checked_mkdir(fd, name, permissions); }

static int checked_unlink(int fd, const char* name, int flags) {
  char path[PATH_MAX];
  resolve(fd, name, path);
  return fails(path, "", 0, NULL) ? -1 : (int)noted(syscall(SYS_unlinkat, fd, name, flags), "unlink", path, "");
}

int unlink(const char* name) { return checked_unlink(AT_FDCWD, name, 0); }
int unlinkat(int fd, const char* name, int flags) { return checked_unlink(fd, name, flags); }
int rmdir(const char* name) { return checked_unlink(AT_FDCWD, name, AT_REMOVEDIR); }

// Other ways to change a file would go unseen, so they are refused while a count goes on.
#define REFUSE(type, name, ...)   \
  type name(__VA_ARGS__) {        \
    if (mode != NOTHING) abort(); \
    errno = ENOSYS;               \
    return (type) - 1;            \
  }

REFUSE(ssize_t, pwrite, int fd, const void* data, size_t size, off_t at)
REFUSE(ssize_t, pwrite64, int fd, const void* data, size_t size, off64_t at)
REFUSE(ssize_t, sendfile, int out, int in, off_t* at, size_t size)
REFUSE(ssize_t, sendfile64, int out, int in, off64_t* at, size_t size)
REFUSE(ssize_t, copy_file_range, int in, off64_t* in_at, int out, off64_t* out_at, size_t size, unsigned flags)
REFUSE(ssize_t, writev, int fd, const struct iovec* parts, int num_parts)
REFUSE(int, fdatasync, int fd)
REFUSE(int, link, const char* from, const char* to)
REFUSE(int, symlink, const char* from, const char* to)
REFUSE(int, ftruncate64, int fd, off64_t size)
