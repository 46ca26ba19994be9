// What a model does with a batch of requests. The tensors are those of ARCHITECTURE.md, "The Triton ensemble".
//
#ifndef RANKHOUSE_TRITON_BACKEND_STEP_H_
#define RANKHOUSE_TRITON_BACKEND_STEP_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "device_stream.h"
#include "request.h"

namespace rankhouse::triton {

// An array that is kept from batch to batch, and grows to what the largest needed. Its content does not last.
template <typename Element>
class Buffer {
 public:
  Element* OfSize(int64_t size) {
    if (size > capacity_) {
      elements_.reset(new Element[size]);
      capacity_ = size;
    }
    return elements_.get();
  }

 private:
  std::unique_ptr<Element[]> elements_;
  int64_t capacity_ = 0;
};

// What one model instance, and so one thread at a time, computes with.
struct Workspace {
  // When the execution began, in nanoseconds of CLOCK_MONOTONIC: all its lookups share one deadline of the engine's.
  int64_t started_ns = 0;
  std::unique_ptr<DeviceStream> stream;  // of the instance's GPU; NULL: it computes on the CPU
  Buffer<int64_t> ids, offsets, num_unknown;
  Buffer<float> dense, embeddings, scores;
};

// A step over one version. Immutable; any thread may use it.
class Step {
 public:
  virtual ~Step() = default;
  virtual const std::vector<TensorSpec>& inputs() const = 0;

  // Throws Failure if it cannot be run by instances on a GPU (`is_on_gpu`), or on the CPU.
  virtual void CheckKind(bool is_on_gpu) const = 0;

  // Computes the outputs of all requests at once: together they are one batch. Throws if any of them is wrong, or may
  // have an answer unlike the others', and then which one need not be known: the caller tries each alone. What befalls
  // only one of them at the very end, when its answer is copied, is set as its own error.
  virtual void Run(const std::vector<Request*>& requests, Workspace* workspace) const = 0;
};

}  // namespace rankhouse::triton

#endif  // RANKHOUSE_TRITON_BACKEND_STEP_H_
