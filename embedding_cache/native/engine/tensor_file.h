// safetensors files: where their tensors lie. The tensors themselves are not read.
#ifndef RANKHOUSE_ENGINE_TENSOR_FILE_H_
#define RANKHOUSE_ENGINE_TENSOR_FILE_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "engine/files.h"

namespace rankhouse::engine {

struct Tensor {
  std::string dtype;
  std::vector<int64_t> shape;
  int64_t begin;  // its bytes in the file
  int64_t end;
};

struct TensorFile {
  std::map<std::string, std::string> metadata;
  std::map<std::string, Tensor> tensors;
};

// Reads and checks a file's header: all tensors lie in the file, side by side, without gaps and to its end. Throws
// Error RH_CORRUPT.
TensorFile ReadTensorFile(const OpenFile& file);

}  // namespace rankhouse::engine

#endif  // RANKHOUSE_ENGINE_TENSOR_FILE_H_
