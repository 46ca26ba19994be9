// One request of a batch: its input tensors in host memory, and the answer that is made of it.
#ifndef RANKHOUSE_TRITON_BACKEND_REQUEST_H_
#define RANKHOUSE_TRITON_BACKEND_REQUEST_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "memory_copy.h"
#include "triton_api.h"

namespace rankhouse::triton {

// A tensor of a step. In a model with Triton's batching (max_batch_size > 0) a dimension of 1 stands before it: there
// one request is one element of the batch, whatever number of rows it has.
struct TensorSpec {
  const char* name;
  TRITONSERVER_DataType type;
  uint32_t num_dims;
  // Whether memory is read by what the elements say. A local client may share the tensor's memory and change it at any
  // time, so these elements are copied before they are checked.
  bool is_copied = false;
};

// An input tensor in host memory.
struct Tensor {
  const void* data = nullptr;
  std::vector<int64_t> shape;
  int64_t size = 0;  // elements

  template <typename Element>
  const Element* as() const {
    return static_cast<const Element*>(data);
  }
  // As Python prints it, for messages.
  std::string ShapeText() const;
};

// Where Triton put an output.
struct OutputMemory {
  void* data = nullptr;
  Place place;
};

// Made and used by one thread. It belongs to Triton's request until Finish, which every request gets exactly once.
class Request {
 public:
  Request(TRITONBACKEND_Request* request, bool is_batched) : request_(request), is_batched_(is_batched) {}

  // Creates the response and reads the inputs. What is wrong becomes this request's error.
  void Read(const std::vector<TensorSpec>& specs);

  bool has_failed() const { return error_ != nullptr; }
  void SetError(TRITONSERVER_Error* error);
  const Tensor& input(size_t index) const { return inputs_[index]; }

  // Creates an output of the response and returns memory for it, of any alignment that fits floats and integers.
  template <typename Element>
  Element* Output(const TensorSpec& spec, const std::vector<int64_t>& shape) {
    return static_cast<Element*>(OutputBytes(spec, shape, sizeof(Element)));
  }

  // Creates an output of the response in whatever memory Triton gives, which is asked for some in `wanted`: the caller
  // has written it when Send is called.
  template <typename Element>
  OutputMemory OutputIn(const Place& wanted, const TensorSpec& spec, const std::vector<int64_t>& shape) {
    return NewOutput(wanted, spec, shape, sizeof(Element));
  }

  // Sends the response or the error.
  void Send();
  // Reports what Triton counts and gives the request back.
  void Finish(TRITONBACKEND_ModelInstance* instance, const uint64_t (&times)[4]);

 private:
  // An output whose buffer is not host memory is written here and copied when it is sent.
  struct Staged {
    std::unique_ptr<std::byte[]> bytes;
    uint64_t num_bytes;
    OutputMemory target;
  };

  void RequireWanted() const;
  Tensor ReadInput(const TensorSpec& spec);
  const void* ReadData(TRITONBACKEND_Input* input, const TensorSpec& spec, uint32_t num_buffers, uint64_t num_bytes);
  OutputMemory NewOutput(const Place& wanted, const TensorSpec& spec, const std::vector<int64_t>& shape,
                         uint64_t element_bytes);
  void* OutputBytes(const TensorSpec& spec, const std::vector<int64_t>& shape, uint64_t element_bytes);

  TRITONBACKEND_Request* request_;
  TRITONBACKEND_Response* response_ = nullptr;
  TRITONSERVER_Error* error_ = nullptr;
  bool is_batched_;
  bool has_succeeded_ = false;
  std::vector<Tensor> inputs_;
  std::vector<std::unique_ptr<std::byte[]>> copies_;  // of inputs that are not used in place
  std::vector<Staged> staged_;
};

}  // namespace rankhouse::triton

#endif  // RANKHOUSE_TRITON_BACKEND_REQUEST_H_
