#include "request.h"

#include <functional>
#include <numeric>

#include "failure.h"

namespace rankhouse::triton {
namespace {

int64_t ElementBytes(TRITONSERVER_DataType type) {
  switch (type) {
    case TRITONSERVER_TYPE_UINT8:
      return 1;
    case TRITONSERVER_TYPE_INT32:
    case TRITONSERVER_TYPE_FP32:
      return 4;
    default:
      return 8;
  }
}

int64_t NumElements(const std::vector<int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

// As NumElements, where the shape comes from outside: a product that wraps around would pass for a small tensor.
int64_t CheckedNumElements(const TensorSpec& spec, const Tensor& tensor, int64_t element_bytes) {
  int64_t num_bytes = element_bytes;
  for (const int64_t extent : tensor.shape) {
    Require(extent >= 0 && !__builtin_mul_overflow(num_bytes, extent, &num_bytes), spec.name, " has the shape ",
            tensor.ShapeText(), ", which no memory can hold");
  }
  return num_bytes / element_bytes;
}

bool IsAligned(const void* data, size_t alignment) { return reinterpret_cast<uintptr_t>(data) % alignment == 0; }

}  // namespace

std::string Tensor::ShapeText() const {
  std::string text = "(";
  for (size_t k = 0; k < shape.size(); ++k) text += (k == 0 ? "" : ", ") + std::to_string(shape[k]);
  return text + (shape.size() == 1 ? ",)" : ")");
}

void Request::Read(const std::vector<TensorSpec>& specs) {
  try {
    Check(TRITONBACKEND_ResponseNew(&response_, request_));
    RequireWanted();
    inputs_.reserve(specs.size());
    for (const TensorSpec& spec : specs) inputs_.push_back(ReadInput(spec));
  } catch (const std::exception& error) {
    SetError(AsError(error));
  }
}

// Whoever asked may have gone, as a client of gRPC does whose deadline has passed.
void Request::RequireWanted() const {
  bool is_cancelled = false;
  Check(TRITONBACKEND_RequestIsCancelled(request_, &is_cancelled));
  if (is_cancelled) throw Failure(TRITONSERVER_ERROR_CANCELLED, "the request was cancelled before it was executed");
}

void Request::SetError(TRITONSERVER_Error* error) {
  TRITONSERVER_ErrorDelete(error_);
  error_ = error;
}

Tensor Request::ReadInput(const TensorSpec& spec) {
  TRITONBACKEND_Input* input = nullptr;
  Check(TRITONBACKEND_RequestInput(request_, spec.name, &input));
  TRITONSERVER_DataType type{};
  const int64_t* shape = nullptr;
  uint32_t num_dims = 0, num_buffers = 0;
  uint64_t num_bytes = 0;
  Check(TRITONBACKEND_InputProperties(input, nullptr, &type, &shape, &num_dims, &num_bytes, &num_buffers));
  Require(type == spec.type, spec.name, " has the type ", TRITONSERVER_DataTypeString(type), "; expected ",
          TRITONSERVER_DataTypeString(spec.type));
  const uint32_t begin = is_batched_ ? 1 : 0;
  Tensor tensor;
  tensor.shape.assign(shape + (num_dims >= begin ? begin : num_dims), shape + num_dims);
  Require(num_dims == spec.num_dims + begin, spec.name, " has shape ", tensor.ShapeText(), "; expected ", spec.num_dims,
          spec.num_dims == 1 ? " dimension" : " dimensions");
  Require(!is_batched_ || shape[0] == 1, spec.name, " has ", shape[0], " batches; expected one for each request");
  const int64_t element_bytes = ElementBytes(type);
  tensor.size = CheckedNumElements(spec, tensor, element_bytes);
  Require(num_bytes == static_cast<uint64_t>(tensor.size * element_bytes), spec.name, " has ", num_bytes,
          " bytes; expected ", tensor.size, " elements of ", element_bytes, ", as its shape says");
  tensor.data = ReadData(input, spec, num_buffers, num_bytes);
  return tensor;
}

const void* Request::ReadData(TRITONBACKEND_Input* input, const TensorSpec& spec, uint32_t num_buffers,
                              uint64_t num_bytes) {
  // Where a pointer may be left out, one without elements is still one that was given.
  alignas(16) static constexpr std::byte kNothing[16] = {};
  if (num_bytes == 0) return kNothing;
  const bool is_in_place = num_buffers == 1 && !spec.is_copied;
  std::byte* copy = nullptr;
  uint64_t done = 0;
  for (uint32_t index = 0; index < num_buffers; ++index) {
    const void* buffer = nullptr;
    uint64_t size = 0;
    Place place;
    Check(TRITONBACKEND_InputBuffer(input, index, &buffer, &size, &place.type, &place.device));
    Require(size <= num_bytes - done, spec.name, " has pieces of more bytes than the ", num_bytes, " of its shape");
    done += size;
    if (is_in_place && done == num_bytes && place.is_host() && IsAligned(buffer, ElementBytes(spec.type)))
      return buffer;
    if (copy == nullptr) copy = copies_.emplace_back(new std::byte[num_bytes]).get();
    Copy(place, buffer, copy + (done - size), size);
  }
  Require(done == num_bytes, spec.name, " has pieces of ", done, " bytes; expected ", num_bytes, " of its shape");
  return copy;
}

OutputMemory Request::NewOutput(const Place& wanted, const TensorSpec& spec, const std::vector<int64_t>& shape,
                                uint64_t element_bytes) {
  std::vector<int64_t> whole(is_batched_ ? 1 : 0, 1);
  whole.insert(whole.end(), shape.begin(), shape.end());
  TRITONBACKEND_Output* output = nullptr;
  Check(TRITONBACKEND_ResponseOutput(response_, &output, spec.name, spec.type, whole.data(),
                                     static_cast<uint32_t>(whole.size())));
  OutputMemory memory{nullptr, wanted};
  Check(TRITONBACKEND_OutputBuffer(output, &memory.data, NumElements(shape) * element_bytes, &memory.place.type,
                                   &memory.place.device));
  return memory;
}

void* Request::OutputBytes(const TensorSpec& spec, const std::vector<int64_t>& shape, uint64_t element_bytes) {
  const OutputMemory memory = NewOutput(Place(), spec, shape, element_bytes);
  if (memory.place.is_host() && IsAligned(memory.data, element_bytes)) return memory.data;
  const uint64_t num_bytes = NumElements(shape) * element_bytes;
  return staged_.emplace_back(Staged{std::unique_ptr<std::byte[]>(new std::byte[num_bytes]), num_bytes, memory})
      .bytes.get();
}

void Request::Send() {
  if (!has_failed()) {
    try {
      for (const Staged& one : staged_) Copy(one.target.place, one.bytes.get(), one.target.data, one.num_bytes);
    } catch (const std::exception& error) {
      SetError(AsError(error));
    }
  }
  has_succeeded_ = !has_failed() && response_ != nullptr;
  // Triton takes the response, and copies the error.
  if (response_ != nullptr) Log(TRITONBACKEND_ResponseSend(response_, TRITONSERVER_RESPONSE_COMPLETE_FINAL, error_));
  response_ = nullptr;
  SetError(nullptr);
}

void Request::Finish(TRITONBACKEND_ModelInstance* instance, const uint64_t (&times)[4]) {
  Log(TRITONBACKEND_ModelInstanceReportStatistics(instance, request_, has_succeeded_, times[0], times[1], times[2],
                                                  times[3]));
  Log(TRITONBACKEND_RequestRelease(request_, TRITONSERVER_REQUEST_RELEASE_ALL));
}

}  // namespace rankhouse::triton
