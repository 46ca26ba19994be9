// The tensors between the steps: ARCHITECTURE.md, "The Triton ensemble".
#ifndef RANKHOUSE_TRITON_BACKEND_TENSORS_H_
#define RANKHOUSE_TRITON_BACKEND_TENSORS_H_

#include "request.h"

namespace rankhouse::triton {

inline constexpr TensorSpec kDense{"dense", TRITONSERVER_TYPE_FP32, 2};
inline constexpr TensorSpec kEmbeddings{"embeddings", TRITONSERVER_TYPE_FP32, 2};
inline constexpr TensorSpec kDegraded{"degraded", TRITONSERVER_TYPE_INT32, 1};
inline constexpr TensorSpec kUnknown{"unknown", TRITONSERVER_TYPE_INT32, 1};
inline constexpr TensorSpec kScores{"scores", TRITONSERVER_TYPE_FP32, 1};

}  // namespace rankhouse::triton

#endif  // RANKHOUSE_TRITON_BACKEND_TENSORS_H_
