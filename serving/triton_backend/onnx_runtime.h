// Dense parts in ONNX Runtime's library, the one that Python's package `onnxruntime` brings.
#ifndef RANKHOUSE_TRITON_BACKEND_ONNX_RUNTIME_H_
#define RANKHOUSE_TRITON_BACKEND_ONNX_RUNTIME_H_

#include <array>
#include <cstdint>
#include <memory>
#include <string>

namespace rankhouse::triton {

class OnnxRuntime;

// A matrix of float32, [rows, width], for one call.
struct Matrix {
  const char* name;
  const float* data;
  int64_t width;
};

// A dense part that is loaded: inputs `dense` and `embeddings`, output `scores`. Any thread may use it.
class DensePart {
 public:
  // library: the path of libonnxruntime.so, which is loaded once and stays. Throws Failure if there is no such library,
  // or the file is no model that it takes.
  DensePart(const std::string& library, const std::string& path);
  ~DensePart();

  // Maps rows to scores [num_rows]. Throws Failure if the model does not give as many.
  void Score(const std::array<Matrix, 2>& inputs, int64_t num_rows, float* scores) const;

 private:
  const OnnxRuntime& runtime_;
  std::string path_;
  void* session_ = nullptr;
};

}  // namespace rankhouse::triton

#endif  // RANKHOUSE_TRITON_BACKEND_ONNX_RUNTIME_H_
