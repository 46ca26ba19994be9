// The embedding operations of Rankhouse, as a C interface. This header has the conventions and what all operations
// share; the operations stand in the headers that it includes at its end.
//
// Conventions, which every function keeps:
//
//  1. Status. A function that can fail returns an rh_status as int: 0 is success. Nothing aborts, prints or exits, and
//     no exception crosses this interface.
//  2. Messages. After a failure rh_last_error() on the same thread says what happened, what was expected and how to
//     fix it.
//  3. Memory. The caller owns every pointer and keeps it alive until the function returns (until the stream has passed
//     it, in the *_cuda functions). Inputs are never written, and outputs never overlap inputs. No function keeps a
//     pointer.
//  4. Layout. Arrays are dense and row-major unless a stride is given. Any alignment that fits the type will do; rows
//     that begin on 64 bytes are fastest. An array without elements may be NULL.
//  5. Threads. Every function may be called from any thread at any time; only the arrays and objects that a call writes
//     need the caller's exclusion. A call spreads its work as its rh_executor says.
//  6. Ids. Every id is checked against its table, and one that is not a row is treated as the table's policy says
//     (rh_out_of_range). No memory outside the arrays is ever touched. Under RH_ERROR the call returns RH_OUT_OF_RANGE
//     with feature, sample, position, id and rows of the first bad id; the content of its outputs is then unspecified,
//     but a function that updates in place has changed nothing.
//  7. Order. Sums have one fixed order (see each function), so results are the same bits whatever the number of
//     threads. Products are not fused into sums unless a function says so, so they are also the same bits on every
//     device.
//  8. Devices. f runs on the CPU and f_cuda on a GPU. A build without CUDA has both; there f_cuda returns
//     RH_UNSUPPORTED. What has no f_cuda runs on the CPU only.
//  9. Versions. rh_abi_version() is raised whenever a declaration, or the signature of a TensorFlow op, changes;
//  callers
//     compare it with RH_ABI_VERSION.
// 10. Extension. Structs are filled with zeros before their fields are set: 0 always means the default.
//
// On a GPU what the kernels read and write lies in device memory; the structs and what is marked "host" lie in host
// memory and may be reused when the call returns. Calls queue their work on `stream` (a cudaStream_t) of the current
// device and return without waiting. What only the kernels can see, bad ids and offsets, they record in the workspace,
// where the *_check_cuda functions find it. A workspace holds at least as many bytes as its *_workspace_cuda function
// says, which depends on the sizes in the arguments alone, is aligned to 256 bytes, and belongs to one call until the
// stream has passed it.
//
// Letters in shapes: B samples, F features, T tables, N ids in all, R rows and D width of a table, U unique ids.
#ifndef RANKHOUSE_KERNELS_H_
#define RANKHOUSE_KERNELS_H_

#include <stdint.h>

#if defined(_WIN32)
#error "Rankhouse builds for Linux"
#endif
#define RH_API __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

#define RH_ABI_VERSION 3

typedef enum rh_status {
  RH_OK = 0,
  RH_INVALID_ARGUMENT = 1,  // a shape, size or value that the function does not take
  RH_OUT_OF_RANGE = 2,      // an id outside its table
  RH_OUT_OF_MEMORY = 3,
  RH_UNSUPPORTED = 4,  // this build or machine cannot do it (built without CUDA)
  RH_CUDA_ERROR = 5,   // CUDA's own message follows
  RH_INTERNAL = 6      // a bug in this library
} rh_status;

// Returns RH_ABI_VERSION of the built library.
RH_API int rh_abi_version(void);

// Returns 1 if the library was built with CUDA, else 0.
RH_API int rh_built_with_cuda(void);

// Returns the message of this thread's last failure, or "". It stays valid until this thread's next failure.
RH_API const char* rh_last_error(void);

// ---------------------------------------------------------------------------------------------------------------------
// How a call spreads its work, and where it keeps what it needs meanwhile
// ---------------------------------------------------------------------------------------------------------------------

// Does the units [begin, end) of a call's work. It never fails and may run on any thread.
typedef void (*rh_range_body)(void* argument, int64_t begin, int64_t end);

// Calls body(argument, begin, end) for disjoint ranges that cover [0, total), in any order and on any threads, and
// returns when all have. `cost` is about how many processor cycles one unit takes.
typedef void (*rh_parallel_for)(void* context, int64_t total, int64_t cost, rh_range_body body, void* argument);

// Memory that calls use while they run and leave for the next one: it grows to what the largest call needed, and is
// only given back when it is destroyed. One call at a time uses it.
typedef struct rh_scratch rh_scratch;
RH_API int rh_scratch_create(rh_scratch** scratch);
RH_API void rh_scratch_destroy(rh_scratch* scratch);  // NULL is allowed

// NULL for an rh_executor means one of zeros.
typedef struct rh_executor {
  rh_parallel_for parallel_for;  // the caller's thread pool; NULL: threads of the call's own, which end with it
  void* context;                 // handed to parallel_for
  int32_t num_threads;           // most threads to use; 0: as many as there are processors
  rh_scratch* scratch;           // NULL: the call allocates what it needs, and frees it
} rh_executor;

// A thread pool for callers that have none. Its threads look out for the next call for 50 microseconds, then sleep in
// the system. It does not survive fork().
typedef struct rh_thread_pool rh_thread_pool;
RH_API int rh_thread_pool_create(int32_t num_threads, rh_thread_pool** pool);  // 0: as many as there are processors
RH_API void rh_thread_pool_destroy(rh_thread_pool* pool);                      // NULL is allowed
// An rh_parallel_for whose context is an rh_thread_pool. Several threads may call it on one pool; they take turns.
RH_API void rh_thread_pool_for(void* pool, int64_t total, int64_t cost, rh_range_body body, void* argument);

#ifdef __cplusplus
}  // extern "C"
#endif

#include "rankhouse/interaction.h"
#include "rankhouse/lookup.h"
#include "rankhouse/optimizers.h"
#include "rankhouse/rows.h"
#include "rankhouse/vocabulary.h"

#endif  // RANKHOUSE_KERNELS_H_
