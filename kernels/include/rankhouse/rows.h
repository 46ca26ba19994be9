// Formats of rows, conversion between them, and memory for them. Include rankhouse/kernels.h.
#ifndef RANKHOUSE_ROWS_H_
#define RANKHOUSE_ROWS_H_

#include "rankhouse/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum rh_row_type {
  RH_FLOAT32 = 0,
  RH_FLOAT16 = 1,   // IEEE 754 binary16
  RH_BFLOAT16 = 2,  // the upper half of a float32
  // D unsigned bytes q, then float32 scale and offset (any alignment): a value is q * scale + offset. FBGEMM's "fused
  // 8-bit rowwise" format.
  RH_INT8_ROWWISE = 3
} rh_row_type;

// Returns the bytes of a packed row, or 0 for an unknown type or a dim that is not 1 to 2^31 - 1.
RH_API int64_t rh_row_bytes(int32_t type, int64_t dim);

// Converts rows [num_rows, dim] of float32 into `type`, at `stride` bytes from one to the next (0: packed).
// RH_FLOAT16 and RH_BFLOAT16 round to the nearest, ties to even; beyond float16's range they become infinite.
// RH_INT8_ROWWISE: offset = min, scale = (max - min) / 255, q = round((x - offset) * (255 / (max - min + 1e-8))), to
// the nearest, ties to even, as FBGEMM has it. A row with an element that is not finite, or whose max - min is not,
// gives RH_INVALID_ARGUMENT and names row and column. Bytes: 4 * D read and rh_row_bytes written for each row.
RH_API int rh_quantize_rows(const float* rows, int64_t num_rows, int64_t dim, int32_t type, int64_t stride,
                            void* quantized, const rh_executor* executor);

// The way back, into float32 [num_rows, dim].
RH_API int rh_dequantize_rows(const void* quantized, int64_t num_rows, int64_t dim, int32_t type, int64_t stride,
                              float* rows, const rh_executor* executor);

// Takes memory for a table from the system: aligned to 2 MiB, zeroed, in huge pages where the system grants them
// (madvise). Reading rows at random is up to three times as fast as in small pages.
RH_API int rh_allocate(int64_t bytes, void** memory);
RH_API void rh_free(void* memory, int64_t bytes);  // NULL is allowed

// Asks for huge pages under memory that is already there, such as a framework's. The pages that lie wholly within it
// are asked for; refusal is no error. Best before the memory is first written; what was written is moved together, a
// second or so for each GB, where the system can (Linux 6.1).
RH_API int rh_advise_huge_pages(void* memory, int64_t bytes);

// On a GPU. stride and alignment as above.
RH_API int rh_quantize_rows_workspace_cuda(int64_t num_rows, int64_t* bytes);
RH_API int rh_quantize_rows_cuda(const float* rows, int64_t num_rows, int64_t dim, int32_t type, int64_t stride,
                                 void* quantized, void* workspace, int64_t workspace_bytes, void* stream);
RH_API int rh_dequantize_rows_cuda(const void* quantized, int64_t num_rows, int64_t dim, int32_t type, int64_t stride,
                                   float* rows, void* stream);
// Waits for the stream and returns what rh_quantize_rows_cuda with this workspace found wrong.
RH_API int rh_quantize_rows_check_cuda(const void* workspace, void* stream);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // RANKHOUSE_ROWS_H_
