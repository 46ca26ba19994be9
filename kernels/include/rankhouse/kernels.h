// The embedding operations of Rankhouse, as a C interface.
//
// Conventions, which every function here keeps:
//
//  1. Status. A function that can fail returns an rh_status as int: 0 is success. Nothing aborts, prints or exits, and
//     no exception crosses this interface.
//  2. Messages. After a failure rh_last_error() on the same thread says what happened, what was expected and how to
//     fix it.
//  3. Memory. The caller owns every pointer and keeps it alive until the function returns (until the stream has passed
//     it, in the *_cuda functions). Inputs are never written, and outputs never overlap inputs. No function keeps a
//     pointer.
//  4. Layout. Arrays are dense and row-major; rows and gradients are float32, ids and offsets int64. Any alignment that
//     fits the type will do. An array without elements may be NULL.
//  5. Threads. Every function may be called from any thread at any time; only the arrays that a call writes need the
//     caller's exclusion. A call spreads its work as its rh_executor says.
//  6. Ids. Every id is checked: 0 <= id < num_rows of its table. A bad one gives RH_OUT_OF_RANGE and a message with
//     feature, sample, position, id and rows of the first bad id. No memory outside the arrays is touched; the content
//     of the outputs is then unspecified, but a function that updates in place has changed nothing.
//  7. Order. Sums have one fixed order (see each function), so results are the same bits whatever the number of
//     threads. No products are fused into sums, so they are also the same bits on every device.
//  8. Devices. f runs on the CPU and f_cuda on a GPU. A build without CUDA has both; there f_cuda returns
//     RH_UNSUPPORTED.
//  9. Versions. rh_abi_version() is raised whenever a declaration here changes; callers compare it with RH_ABI_VERSION.
//
// Letters in shapes: B samples, F features, T tables, N ids in all, D width of a table, E sum of the widths of all
// features, U unique ids.
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

#define RH_ABI_VERSION 1

typedef enum rh_status {
  RH_OK = 0,
  RH_INVALID_ARGUMENT = 1,  // a shape, size or value that the function does not take
  RH_OUT_OF_RANGE = 2,      // an id outside its table
  RH_OUT_OF_MEMORY = 3,
  RH_UNSUPPORTED = 4,  // this build or machine cannot do it (built without CUDA)
  RH_CUDA_ERROR = 5,   // CUDA's own message follows
  RH_INTERNAL = 6      // a bug in this library
} rh_status;

typedef enum rh_combiner { RH_SUM = 0, RH_MEAN = 1 } rh_combiner;

// Returns RH_ABI_VERSION of the built library.
RH_API int rh_abi_version(void);

// Returns 1 if the library was built with CUDA, else 0.
RH_API int rh_built_with_cuda(void);

// Returns the message of this thread's last failure, or "". It stays valid until this thread's next failure.
RH_API const char* rh_last_error(void);

// ---------------------------------------------------------------------------------------------------------------------
// How a call spreads its work
// ---------------------------------------------------------------------------------------------------------------------

// Does the units [begin, end) of a call's work. It never fails and may run on any thread.
typedef void (*rh_range_body)(void* argument, int64_t begin, int64_t end);

// Calls body(argument, begin, end) for disjoint ranges that cover [0, total), in any order and on any threads, and
// returns when all have. `cost` is about how many processor cycles one unit takes.
typedef void (*rh_parallel_for)(void* context, int64_t total, int64_t cost, rh_range_body body, void* argument);

// NULL for an rh_executor means {NULL, NULL, 0}.
typedef struct rh_executor {
  rh_parallel_for parallel_for;  // the caller's thread pool; NULL: threads of the call's own, which end with it
  void* context;                 // handed to parallel_for
  int32_t num_threads;           // without parallel_for: most threads to use; 0: as many as there are processors
} rh_executor;

// ---------------------------------------------------------------------------------------------------------------------
// Pooled lookup
// ---------------------------------------------------------------------------------------------------------------------

typedef struct rh_table {
  const float* rows;  // [num_rows, dim]; not read, and may be NULL, where only the shape matters
  int64_t num_rows;   // >= 0
  int64_t dim;        // 1 to 2^31 - 1
} rh_table;

// F * B bags of ids. Bag (f, b) holds the ids of feature f in sample b. Bags lie feature by feature: first all those of
// feature 0.
typedef struct rh_lookup {
  const rh_table* tables;         // [T]
  const int32_t* feature_tables;  // [F] the table of each feature; features may share one
  const int32_t* combiners;       // [F] an rh_combiner each
  const int64_t* ids;             // [N]
  const int64_t* offsets;  // [F * B + 1] bag i holds ids[offsets[i]] to ids[offsets[i + 1] - 1]; or NULL: see hotness
  const int32_t* hotness;  // [F] read where offsets is NULL: all bags of feature f hold hotness[f] ids
  int64_t num_ids;         // N
  int64_t batch_size;      // B
  int32_t num_tables;      // T
  int32_t num_features;    // F
} rh_lookup;

// Adds up (RH_SUM) or averages (RH_MEAN) the rows of each bag.
// out [B, E]: features side by side, in their order. An empty bag gives zeros.
// Order: the rows of a bag in the order of its ids; a mean is the sum times (1 / length).
RH_API int rh_pooled_lookup(const rh_lookup* lookup, float* out, const rh_executor* executor);

// The gradient of one table: the rows that a batch touched, each once.
typedef struct rh_sparse_gradient {
  int64_t* ids;      // out [U] increasing
  float* rows;       // out [U, D]
  int64_t capacity;  // in: how many rows fit, at least what rh_gradient_capacity gave
  int64_t num_rows;  // out: U
} rh_sparse_gradient;

// Writes into capacity [T] how many rows of each table the batch can touch at most: min(its ids, its rows).
RH_API int rh_gradient_capacity(const rh_lookup* lookup, int64_t* capacity);

// The backward of rh_pooled_lookup: from grad [B, E], the gradient of each table, with duplicate ids combined.
// gradients [T]. tables[t].rows is not read.
// Order: the contributions to a row in the order of their positions in ids, in chunks of RH_GRADIENT_CHUNK: each chunk
// is added up from its first, then the chunks' sums are, so that many threads can share a hot row and no bit depends on
// them.
RH_API int rh_pooled_lookup_gradient(const rh_lookup* lookup, const float* grad, rh_sparse_gradient* gradients,
                                     const rh_executor* executor);
#define RH_GRADIENT_CHUNK 256

// ---------------------------------------------------------------------------------------------------------------------
// Optimizers on touched rows
// ---------------------------------------------------------------------------------------------------------------------

// One table's update from a sparse gradient. Only the rows named in ids are read or written.
typedef struct rh_update {
  float* rows;            // in and out [num_rows, dim]
  float* accumulator;     // in and out [num_rows, dim] of Adagrad; NULL for SGD
  const int64_t* ids;     // [num_ids], strictly increasing
  const float* gradient;  // [num_ids, dim]
  // *_cuda only, or NULL: the number of ids, on the device; num_ids is then the most it can be.
  const int64_t* device_num_ids;
  int64_t num_rows;
  int64_t dim;
  int64_t num_ids;
} rh_update;

// For each touched row: rows -= learning_rate * gradient.
RH_API int rh_apply_sgd(const rh_update* updates, int32_t num_tables, float learning_rate, const rh_executor* executor);

// For each touched row: accumulator += gradient^2; rows -= learning_rate * gradient / (sqrt(accumulator) + epsilon).
// (Duchi, Hazan, Singer 2011, diagonal form; epsilon outside the root, as tf_keras' legacy Adagrad has it.)
RH_API int rh_apply_adagrad(const rh_update* updates, int32_t num_tables, float learning_rate, float epsilon,
                            const rh_executor* executor);

// ---------------------------------------------------------------------------------------------------------------------
// The same on a GPU
// ---------------------------------------------------------------------------------------------------------------------
//
// What the kernels read and write lies in device memory: table rows, ids, offsets, out, grad, the ids and rows of
// sparse gradients, what rh_update points to, and the workspace. The structs themselves and the other arrays (tables,
// feature_tables, combiners, hotness, gradients, updates) lie in host memory and may be reused when the call returns.
//
// Calls queue their work on `stream` (a cudaStream_t) of the current device and return without waiting. What only the
// kernels can see, bad ids and offsets, they record in the workspace, where the *_check_cuda functions find it.
//
// A workspace holds at least as many bytes as its *_workspace_cuda function says, which depends on the sizes in the
// arguments alone, and belongs to one call until the stream has passed it.

// As rh_pooled_lookup.
RH_API int rh_pooled_lookup_workspace_cuda(const rh_lookup* lookup, int64_t* bytes);
RH_API int rh_pooled_lookup_cuda(const rh_lookup* lookup, float* out, void* workspace, int64_t workspace_bytes,
                                 void* stream);

// As rh_pooled_lookup_gradient, but the numbers of unique ids go to num_rows [T] in device memory, and
// gradients[t].num_rows is left alone. Where offsets is not NULL, the ids of a table cannot be counted before: a
// capacity below its unique ids is then found by the kernels.
RH_API int rh_pooled_lookup_gradient_workspace_cuda(const rh_lookup* lookup, int64_t* bytes);
RH_API int rh_pooled_lookup_gradient_cuda(const rh_lookup* lookup, const float* grad, rh_sparse_gradient* gradients,
                                          int64_t* num_rows, void* workspace, int64_t workspace_bytes, void* stream);

// Waits for the stream and returns what the lookup or gradient call with this workspace found wrong.
RH_API int rh_lookup_check_cuda(const rh_lookup* lookup, const void* workspace, void* stream);

// As rh_apply_sgd and rh_apply_adagrad.
RH_API int rh_apply_workspace_cuda(int32_t num_tables, int64_t* bytes);
RH_API int rh_apply_sgd_cuda(const rh_update* updates, int32_t num_tables, float learning_rate, void* workspace,
                             int64_t workspace_bytes, void* stream);
RH_API int rh_apply_adagrad_cuda(const rh_update* updates, int32_t num_tables, float learning_rate, float epsilon,
                                 void* workspace, int64_t workspace_bytes, void* stream);

// Waits for the stream and returns what the apply call with this workspace found wrong.
RH_API int rh_apply_check_cuda(const rh_update* updates, int32_t num_tables, const void* workspace, void* stream);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // RANKHOUSE_KERNELS_H_
