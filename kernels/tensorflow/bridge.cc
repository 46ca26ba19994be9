#include "tensorflow/bridge.h"

#include <algorithm>
#include <functional>

#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/kernels/training_op_helpers.h"
#include "tensorflow/core/lib/core/threadpool.h"
#include "tensorflow/core/platform/errors.h"

namespace rankhouse {
namespace {

namespace tf = tensorflow;

// Scratches that no call is using. It lives as long as the process.
class ScratchPool {
 public:
  // Returns NULL where there is none and no memory for one: a call then allocates what it needs itself.
  rh_scratch* Take() {
    {
      tf::mutex_lock lock(mutex_);
      if (!unused_.empty()) {
        rh_scratch* const scratch = unused_.back();
        unused_.pop_back();
        return scratch;
      }
    }
    rh_scratch* scratch = nullptr;
    return rh_scratch_create(&scratch) == RH_OK ? scratch : nullptr;
  }

  void Return(rh_scratch* scratch) {
    if (scratch == nullptr) return;
    tf::mutex_lock lock(mutex_);
    unused_.push_back(scratch);
  }

 private:
  tf::mutex mutex_;
  std::vector<rh_scratch*> unused_;
};

ScratchPool& Scratches() {
  static ScratchPool& pool = *new ScratchPool;
  return pool;
}

template <typename T>
tf::Status MakeSafe(tf::OpKernelContext* context, tf::Var* variable) {
  return tf::EnsureSparseVariableAccess<Eigen::ThreadPoolDevice, T>(context, variable);
}

}  // namespace

tf::Status ToStatus(int status) {
  switch (status) {
    case RH_OK:
      return tf::OkStatus();
    case RH_INVALID_ARGUMENT:
    case RH_OUT_OF_RANGE:
      return tf::errors::InvalidArgument(rh_last_error());
    case RH_OUT_OF_MEMORY:
      return tf::errors::ResourceExhausted(rh_last_error());
    case RH_UNSUPPORTED:
      return tf::errors::Unimplemented(rh_last_error());
    default:
      return tf::errors::Internal(rh_last_error());
  }
}

Executor::Executor(tf::OpKernelContext* context) {
  const auto parallel_for = [](void* workers, int64_t total, int64_t cost, rh_range_body body, void* argument) {
    static_cast<tf::thread::ThreadPool*>(workers)->ParallelFor(
        total, cost, [body, argument](int64_t begin, int64_t end) { body(argument, begin, end); });
  };
  const tf::DeviceBase::CpuWorkerThreads* threads = context->device()->tensorflow_cpu_worker_threads();
  executor_ = {parallel_for, threads->workers, threads->num_threads, Scratches().Take()};
}

Executor::~Executor() { Scratches().Return(executor_.scratch); }

tf::Status FindVariable(tf::OpKernelContext* context, int input, VariablePointer* variable) {
  TF_RETURN_IF_ERROR(tf::LookupResource(context, tf::HandleFromInput(context, input), variable));
  // From here on nothing else aliases the variable's memory, so rows can be read and written without a copy of it.
  switch ((*variable)->tensor()->dtype()) {
    case tf::DT_FLOAT:
      return MakeSafe<float>(context, variable->get());
    case tf::DT_HALF:
      return MakeSafe<Eigen::half>(context, variable->get());
    case tf::DT_BFLOAT16:
      return MakeSafe<Eigen::bfloat16>(context, variable->get());
    case tf::DT_UINT8:
      return MakeSafe<uint8_t>(context, variable->get());
    case tf::DT_INT32:
      return MakeSafe<int32_t>(context, variable->get());
    default:
      return tf::errors::InvalidArgument("variable of ", (*variable)->DebugString(),
                                         ": expected float32, float16, bfloat16, uint8 or int32");
  }
}

tf::Status CheckVariable(tf::Var* variable, int64_t num_rows, int64_t width, tf::DataType type) {
  const tf::TensorShape expected({num_rows, width});
  if (variable->is_initialized && variable->tensor()->shape() == expected && variable->tensor()->dtype() == type) {
    return tf::OkStatus();
  }
  return tf::errors::InvalidArgument("variable of ", variable->DebugString(), ": expected an initialized one of shape ",
                                     expected.DebugString(), " with ", tf::DataTypeString(type));
}

std::vector<tf::tf_shared_lock> LockForReading(const std::vector<VariablePointer>& variables) {
  std::vector<tf::mutex*> mutexes;
  for (const VariablePointer& variable : variables) mutexes.push_back(variable->mu());
  std::sort(mutexes.begin(), mutexes.end(), std::less<>());
  mutexes.erase(std::unique(mutexes.begin(), mutexes.end()), mutexes.end());
  std::vector<tf::tf_shared_lock> locks;
  locks.reserve(mutexes.size());
  for (tf::mutex* mutex : mutexes) locks.emplace_back(*mutex);
  return locks;
}

tf::Status LockForWriting(const std::vector<VariablePointer>& variables, std::vector<tf::mutex_lock>* locks) {
  std::vector<tf::mutex*> mutexes;
  for (const VariablePointer& variable : variables) mutexes.push_back(variable->mu());
  std::sort(mutexes.begin(), mutexes.end(), std::less<>());
  if (std::adjacent_find(mutexes.begin(), mutexes.end()) != mutexes.end()) {
    return tf::errors::InvalidArgument("two of the tables and slots are the same variable: each needs its own");
  }
  locks->reserve(mutexes.size());
  for (tf::mutex* mutex : mutexes) locks->emplace_back(*mutex);
  return tf::OkStatus();
}

}  // namespace rankhouse
