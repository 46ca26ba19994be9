// Conversion of rows between float32 and the other formats on a GPU.
//
// A warp owns a row. Every element depends on its row alone, and the least and the greatest of a row on no order, so
// the result is the same bits as on the CPU. Bytes moved: see rows.h; row-wise int8 reads a row twice, the second time
// from a cache.
#include "core/row_types.h"
#include "core/rows.h"
#include "cuda/group.cuh"

namespace rankhouse {
namespace {

constexpr int32_t kMostOrder = std::numeric_limits<int32_t>::max();

// What a call finds wrong, and where the row is.
struct QuantizeFault {
  Fault row;  // the first that has no row-wise int8 form
  const float* rows;
  int64_t dim;
};

struct Conversion {
  float* rows;
  char* quantized;
  int64_t num_rows;
  int64_t dim;
  int64_t stride;
  int32_t type;
};

// A warp's row, or -1.
__device__ int64_t RowOfWarp(const Conversion& conversion) {
  const int64_t row = GlobalThread() / 32;
  return row < conversion.num_rows ? row : -1;
}

__device__ void StoreFloat(char* target, float value) {
  const uint32_t bits = BitsOfFloat(value);
  for (int byte = 0; byte < 4; ++byte) target[byte] = static_cast<char>(bits >> 8 * byte);
}

__device__ void QuantizeInt8(const float* from, int64_t dim, char* to, int64_t row, QuantizeFault* fault) {
  const Group group(32);
  int32_t least = kMostOrder;
  int32_t most = -kMostOrder - 1;
  for (int64_t d = group.lane; d < dim; d += 32) {
    const int32_t order = OrderOf(BitsOfFloat(from[d]));
    least = min(least, order);
    most = max(most, order);
  }
  for (int step = 16; step > 0; step /= 2) {
    least = min(least, __shfl_xor_sync(group.mask, least, step));
    most = max(most, __shfl_xor_sync(group.mask, most, step));
  }
  const Int8Scale scale(FloatOfOrder(least), FloatOfOrder(most));
  if (!scale.IsFinite()) {
    if (group.lane == 0) atomicMin(&fault->row, static_cast<Fault>(row));
    return;
  }
  for (int64_t d = group.lane; d < dim; d += 32) to[d] = static_cast<char>(scale.Quantize(from[d]));
  if (group.lane > 0) return;
  StoreFloat(to + dim, scale.scale);
  StoreFloat(to + dim + sizeof(float), scale.offset);
}

__global__ void QuantizeAll(const __grid_constant__ Conversion conversion, QuantizeFault* fault) {
  const int64_t row = RowOfWarp(conversion);
  if (row < 0) return;
  const float* from = conversion.rows + row * conversion.dim;
  char* to = conversion.quantized + row * conversion.stride;
  if (conversion.type == RH_INT8_ROWWISE) return QuantizeInt8(from, conversion.dim, to, row, fault);
  for (int64_t d = threadIdx.x % 32; d < conversion.dim; d += 32) {
    if (conversion.type == RH_FLOAT16) {
      reinterpret_cast<uint16_t*>(to)[d] = FloatToFloat16(from[d]);
    } else if (conversion.type == RH_BFLOAT16) {
      reinterpret_cast<uint16_t*>(to)[d] = FloatToBFloat16(from[d]);
    } else {
      reinterpret_cast<float*>(to)[d] = from[d];
    }
  }
}

template <typename Row>
__device__ void DequantizeRow(const Conversion& conversion, int64_t r) {
  const Row row(conversion.quantized + r * conversion.stride, conversion.dim);
  float* to = conversion.rows + r * conversion.dim;
  for (int64_t d = threadIdx.x % 32; d < conversion.dim; d += 32) to[d] = row[d];
}

__global__ void DequantizeAll(const __grid_constant__ Conversion conversion) {
  const int64_t row = RowOfWarp(conversion);
  if (row < 0) return;
  switch (conversion.type) {
    case RH_FLOAT16:
      return DequantizeRow<Float16Row>(conversion, row);
    case RH_BFLOAT16:
      return DequantizeRow<BFloat16Row>(conversion, row);
    case RH_INT8_ROWWISE:
      return DequantizeRow<Int8Row>(conversion, row);
    default:
      return DequantizeRow<Float32Row>(conversion, row);
  }
}

Conversion MakeConversion(const float* rows, int64_t num_rows, int64_t dim, int32_t type, int64_t stride,
                          const void* quantized) {
  stride = CheckRows(rows, num_rows, dim, type, stride, quantized);
  const int64_t bytes = type == RH_INT8_ROWWISE ? 1 : type == RH_FLOAT32 ? 4 : 2;
  Require(stride % bytes == 0 && IsAligned(quantized, bytes), "stride is ", stride, " bytes: expected a multiple of ",
          bytes, ", and quantized to begin at one");
  return {const_cast<float*>(rows), static_cast<char*>(const_cast<void*>(quantized)), num_rows, dim, stride, type};
}

int64_t NumBlocks(int64_t num_rows) { return DivideUp(num_rows, kBlockThreads / 32); }

void QuantizeRows(const Conversion& conversion, Workspace workspace, cudaStream_t stream) {
  QuantizeFault* fault = workspace.Take<QuantizeFault>(1);
  Upload(fault, std::vector<QuantizeFault>{{kNoFault, conversion.rows, conversion.dim}}, stream);
  Launch(QuantizeAll, NumBlocks(conversion.num_rows), stream, conversion, fault);
}

// Throws what the kernels found wrong.
void CheckQuantize(const void* data, cudaStream_t stream) {
  QuantizeFault fault;
  CopyToHost(&fault, Workspace::Of(data).Take<QuantizeFault>(1), 1, stream);
  if (fault.row == kNoFault) return;
  std::vector<float> row(fault.dim);
  const int64_t r = static_cast<int64_t>(fault.row);
  CopyToHost(row.data(), fault.rows + r * fault.dim, fault.dim, stream);
  ThrowInt8Fault(row.data(), r, fault.dim);
}

}  // namespace
}  // namespace rankhouse

int rh_quantize_rows_workspace_cuda(int64_t num_rows, int64_t* bytes) {
  return rankhouse::Guard([&] {
    rankhouse::Require(num_rows >= 0 && bytes != nullptr, "num_rows is negative or bytes is NULL");
    rankhouse::Workspace workspace;
    workspace.Take<rankhouse::QuantizeFault>(1);
    *bytes = workspace.used();
  });
}

int rh_quantize_rows_cuda(const float* rows, int64_t num_rows, int64_t dim, int32_t type, int64_t stride,
                          void* quantized, void* workspace, int64_t workspace_bytes, void* stream) {
  return rankhouse::Guard([&] {
    rankhouse::QuantizeRows(rankhouse::MakeConversion(rows, num_rows, dim, type, stride, quantized),
                            rankhouse::Workspace(workspace, workspace_bytes), static_cast<cudaStream_t>(stream));
  });
}

int rh_dequantize_rows_cuda(const void* quantized, int64_t num_rows, int64_t dim, int32_t type, int64_t stride,
                            float* rows, void* stream) {
  return rankhouse::Guard([&] {
    const rankhouse::Conversion conversion = rankhouse::MakeConversion(rows, num_rows, dim, type, stride, quantized);
    rankhouse::Launch(rankhouse::DequantizeAll, rankhouse::NumBlocks(num_rows), static_cast<cudaStream_t>(stream),
                      conversion);
  });
}

int rh_quantize_rows_check_cuda(const void* workspace, void* stream) {
  return rankhouse::Guard([&] { rankhouse::CheckQuantize(workspace, static_cast<cudaStream_t>(stream)); });
}
