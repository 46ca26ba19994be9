// Lookup of embedding rows, pooled or not, over many tables in one call, and its backward. Include rankhouse/kernels.h.
#ifndef RANKHOUSE_LOOKUP_H_
#define RANKHOUSE_LOOKUP_H_

#include "rankhouse/kernels.h"
#include "rankhouse/rows.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum rh_combiner {
  RH_SUM = 0,    // the sum of the rows, each times its weight
  RH_MEAN = 1,   // the sum divided by the sum of the weights
  RH_SQRTN = 2,  // the sum divided by the root of the sum of the squared weights
  RH_NONE = 3    // no pooling: each id's row by itself; takes no weights
} rh_combiner;

// What RH_MEAN and RH_SQRTN divide by where there are weights.
typedef enum rh_weighting {
  RH_WEIGHTING_TENSORFLOW = 0,  // as above; a divisor of 0 gives zeros, as in tf.nn.embedding_lookup_sparse
  RH_WEIGHTING_FBGEMM = 1       // the number of ids, or its root: weights change the sum alone
} rh_weighting;

typedef enum rh_id_type { RH_INT64 = 0, RH_INT32 = 1 } rh_id_type;

// What becomes of an id that is not a row of its table. Whatever it is, the id counts in its bag's divisor.
typedef enum rh_out_of_range {
  RH_ERROR = 0,   // the call fails
  RH_ZERO = 1,    // its row is all zeros, and it has no gradient
  RH_CLIP = 2,    // the first row where it is below 0, else the last
  RH_OOV_ROW = 3  // the row that the table names
} rh_out_of_range;

typedef struct rh_table {
  const void* rows;      // R rows of `type`; not read, and may be NULL, where only the shape matters
  int64_t num_rows;      // R >= 0
  int64_t dim;           // D, 1 to 2^31 - 1
  int64_t stride;        // bytes from one row to the next; 0: rh_row_bytes(type, dim), packed
  int64_t oov_row;       // RH_OOV_ROW: the row of ids out of range; 0 <= oov_row < R
  int32_t type;          // an rh_row_type
  int32_t out_of_range;  // an rh_out_of_range; RH_CLIP and RH_OOV_ROW of a table without rows act as RH_ERROR
} rh_table;

// F * B bags of ids. Bag (f, b) holds the ids of feature f in sample b. Bags lie feature by feature: first all those of
// feature 0.
typedef struct rh_lookup {
  const rh_table* tables;         // host [T]
  const int32_t* feature_tables;  // host [F] the table of each feature; features may share one
  const int32_t* combiners;       // host [F] an rh_combiner each
  const void* ids;                // [N] of id_type
  const float* weights;           // [N] or NULL: all are 1. Those of RH_NONE features are not read
  const int64_t* offsets;  // [F * B + 1] bag i holds ids[offsets[i]] to ids[offsets[i + 1] - 1]; or NULL: see hotness
  const int32_t* hotness;  // host [F] read where offsets is NULL: all bags of feature f hold hotness[f] ids
  int64_t num_ids;         // N
  int64_t batch_size;      // B
  int32_t num_tables;      // T
  int32_t num_features;    // F
  int32_t id_type;         // an rh_id_type
  int32_t weighting;       // an rh_weighting
} rh_lookup;

// Where one feature's rows lie: those that a lookup writes, or their gradient.
//   pooled                 [B, D]       sample b at data + b * stride
//   RH_NONE with hotness   [B, h * D]   sample b at data + b * stride, its h rows side by side
//   RH_NONE with offsets   [N_f, D]     the feature's k-th id at data + k * stride
// Features side by side in one matrix [B, E] are pointers into its first row and strides of E.
typedef struct rh_feature_rows {
  float* data;
  int64_t stride;  // floats from one row to the next; at least the row's width
} rh_feature_rows;

// The ids of a batch that are no rows of their table; the first is that with the lowest feature, sample and position.
typedef struct rh_bad_ids {
  int64_t count;
  int64_t feature;  // this and the next three say nothing where count is 0
  int64_t sample;
  int64_t position;  // in its bag
  int64_t id;
} rh_bad_ids;

// Looks the batch up: out [F]. An empty bag gives zeros. bad_ids [T] or NULL: how many ids were out of range, by table.
// Order: the rows of a bag in the order of its ids, weight * row rounded before it is added; then times 1 / divisor.
// Weights (their squares for RH_SQRTN) are added in the same order. Rows that are not float32 are converted first, each
// element exactly or (RH_INT8_ROWWISE) with one rounding for the product and one for the sum.
// Bytes: N * row bytes read at random, the output written, 8 or 4 per id, 8 per bag and 4 per weight read in order.
RH_API int rh_pooled_lookup(const rh_lookup* lookup, const rh_feature_rows* out, rh_bad_ids* bad_ids,
                            const rh_executor* executor);

// The gradient of one table: the rows that a batch touched, each once.
typedef struct rh_sparse_gradient {
  int64_t* ids;      // out [U] increasing
  float* rows;       // out [U, D]
  int64_t capacity;  // in: how many rows fit, at least what rh_gradient_capacity gave
  int64_t num_rows;  // out: U
} rh_sparse_gradient;

// Writes into capacity [T] how many rows of each table the batch can touch at most: min(its ids, its rows).
RH_API int rh_gradient_capacity(const rh_lookup* lookup, int64_t* capacity);

// The backward of rh_pooled_lookup: from grad [F], the gradient of what it wrote, that of each table, with duplicate
// ids combined. gradients [T]. rows, type and stride of the tables are not read.
// Order: the contributions to a row in the order of their positions in ids, in chunks of RH_GRADIENT_CHUNK: each chunk
// is added up from its first, then the chunks' sums are, so that many threads can share a hot row and no bit depends on
// them. A contribution is (weight * (1 / divisor)) * grad, each product rounded.
// Bytes: grad read once, 16 per id, U * (8 + D * 4) written and, at random, read and written again; of tables that
// threads share, or that are wide, about 16 per id and pass of a sort, N * D * 4 of grad at random, U * (8 + D * 4)
// written.
RH_API int rh_pooled_lookup_gradient(const rh_lookup* lookup, const rh_feature_rows* grad,
                                     rh_sparse_gradient* gradients, const rh_executor* executor);
#define RH_GRADIENT_CHUNK 256

// The gradient of the weights, weight_grad [N]: with g the bag's gradient, y its pooled row, x the id's row, w its
// weight
//   RH_SUM, and all with RH_WEIGHTING_FBGEMM   (g . x) / divisor
//   RH_MEAN    (g . x - g . y) / sum(w)
//   RH_SQRTN   (g . x) / sqrt(sum(w^2)) - w * (g . y) / sum(w^2)
// and 0 where the divisor is 0 or the combiner RH_NONE. Rows of any type but RH_INT8_ROWWISE; weights must be there. To
// rounding, in one order.
RH_API int rh_pooled_lookup_weight_gradient(const rh_lookup* lookup, const rh_feature_rows* grad, float* weight_grad,
                                            const rh_executor* executor);

// From sparse to offsets: samples [N] is the sample of each id of one feature, never falling, 0 <= sample < B; the id
// of entry n has its sample at samples[n * stride]. Writes offsets [B + 1], samples without ids being empty bags.
RH_API int rh_offsets_from_samples(const int64_t* samples, int64_t stride, int64_t num_ids, int64_t batch_size,
                                   int64_t* offsets);

// On a GPU. out, grad: host [F] of device pointers; gradients: host [T] of device pointers; the numbers of unique ids
// go to num_rows [T] in device memory, and gradients[t].num_rows is left alone. Where offsets is not NULL, the ids of a
// table cannot be counted before: a capacity below its unique ids is then found by the kernels.
RH_API int rh_pooled_lookup_workspace_cuda(const rh_lookup* lookup, int64_t* bytes);
RH_API int rh_pooled_lookup_cuda(const rh_lookup* lookup, const rh_feature_rows* out, void* workspace,
                                 int64_t workspace_bytes, void* stream);
RH_API int rh_pooled_lookup_gradient_workspace_cuda(const rh_lookup* lookup, int64_t* bytes);
RH_API int rh_pooled_lookup_gradient_cuda(const rh_lookup* lookup, const rh_feature_rows* grad,
                                          rh_sparse_gradient* gradients, int64_t* num_rows, void* workspace,
                                          int64_t workspace_bytes, void* stream);
RH_API int rh_pooled_lookup_weight_gradient_cuda(const rh_lookup* lookup, const rh_feature_rows* grad,
                                                 float* weight_grad, void* workspace, int64_t workspace_bytes,
                                                 void* stream);

// Waits for the stream and returns what the lookup, gradient or update call with this workspace found wrong; bad_ids
// (host [T] or NULL) as in rh_pooled_lookup, after a lookup.
RH_API int rh_lookup_check_cuda(const rh_lookup* lookup, const void* workspace, rh_bad_ids* bad_ids, void* stream);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // RANKHOUSE_LOOKUP_H_
