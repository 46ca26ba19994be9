// Calls that are timed one by one inside C, so that what is compared is what a program in C waits for, and Python's way
// to call C counts for nobody. Also a thread that makes such calls without a pause, while somebody changes what they
// do.
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

typedef enum { ENGINE_LOOKUP, GATHER_LOOP, STORE_LOOKUP } kind_of_call;

typedef struct {
  int64_t kind;            // a kind_of_call
  void (*function)(void);  // rh_engine_lookup, gather_loop or kv_lookup
  void* arguments[5];      // its own; integers as pointers
} timed_call;

static int make(const timed_call* call) {
  void* const* const with = call->arguments;
  switch (call->kind) {
    case ENGINE_LOOKUP:
      return ((int (*)(void*, void*, void*, void*, void*))call->function)(with[0], with[1], with[2], with[3], with[4]);
    case GATHER_LOOP:
      ((void (*)(void*, int))call->function)(with[0], (int)(intptr_t)with[1]);
      return 0;
    default:
      return ((int (*)(void*, void*, int64_t, int64_t, void*))call->function)(with[0], with[1], (intptr_t)with[2],
                                                                              (intptr_t)with[3], with[4]);
  }
}

static int64_t now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);  // Python's time.perf_counter, on Linux
  return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

// Makes calls [num_calls] in turn until they have taken so long, or `most` were made; writes how long each took.
// Returns how many that were; -1: one failed.
int64_t time_calls(const timed_call* calls, int64_t num_calls, int64_t for_nanoseconds, int64_t* taken, int64_t most) {
  int64_t total = 0;
  for (int64_t n = 0; n < most; ++n) {
    const int64_t begin = now();
    if (make(calls + n % num_calls) != 0) return -1;
    taken[n] = now() - begin;
    total += taken[n];
    if (total >= for_nanoseconds) return n + 1;
  }
  return most;
}

// What the thread is to call, and a number of its own.
typedef struct {
  const timed_call* calls;
  int64_t num_calls;
  int64_t number;
} work;

// When a call began, how long it took, and of which work it was.
typedef struct {
  int64_t begin, taken, number;
} made_call;

typedef struct {
  pthread_t thread;
  _Atomic(const work*) current;
  atomic_llong num_made, num_failed;
  atomic_bool is_over;
  made_call* made;
  int64_t most;
} caller;

static void* call_on(void* argument) {
  caller* self = argument;
  for (int64_t n = 0; n < self->most && !atomic_load(&self->is_over); ++n) {
    const work* const mine = atomic_load(&self->current);
    const int64_t begin = now();
    if (make(mine->calls + n % mine->num_calls) != 0) atomic_fetch_add(&self->num_failed, 1);
    self->made[n] = (made_call){begin, now() - begin, mine->number};
    atomic_store(&self->num_made, n + 1);
  }
  return NULL;
}

// Starts a thread that makes the calls of some work, one after the other, `most` at most; into made [most]. NULL: there
// is no thread to be had.
caller* start_calling(const work* first, made_call* made, int64_t most) {
  caller* self = calloc(1, sizeof *self);
  atomic_init(&self->current, first);
  self->made = made;
  self->most = most;
  if (pthread_create(&self->thread, NULL, call_on, self) == 0) return self;
  free(self);
  return NULL;
}

// Has it go on with other work. The call that is under way is the last one of the work before.
void change_work(caller* self, const work* next) { atomic_store(&self->current, next); }

int64_t num_made(caller* self) { return atomic_load(&self->num_made); }

// Ends the thread. Returns how many calls failed.
int64_t stop_calling(caller* self) {
  atomic_store(&self->is_over, 1);
  pthread_join(self->thread, NULL);
  const int64_t num_failed = atomic_load(&self->num_failed);
  free(self);
  return num_failed;
}
