// Where bags begin, from how long they are. A thread owns a block of lengths: it adds them up, and, when it is known
// how many ids come before, writes where they begin. Bytes: the lengths read twice, the offsets written once.
#include <algorithm>
#include <utility>
#include <vector>

#include "tensorflow/bridge.h"
#include "tensorflow/core/lib/core/threadpool.h"
#include "tensorflow/core/platform/errors.h"

namespace rankhouse {
namespace {

namespace tf = tensorflow;

class OffsetsFromLengthsOp : public tf::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(tf::OpKernelContext* context) override {
    const tf::Tensor& lengths = context->input(0);
    tf::Tensor* offsets = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, tf::TensorShape({lengths.NumElements() + 1}), &offsets));
    const int64_t* from = lengths.flat<int64_t>().data();
    int64_t* to = offsets->flat<int64_t>().data();
    const int64_t num_bags = lengths.NumElements();
    const int64_t num_blocks = (num_bags + kBlock - 1) / kBlock;
    std::vector<int64_t> starts(num_blocks, 0);
    tf::thread::ThreadPool* workers = context->device()->tensorflow_cpu_worker_threads()->workers;
    workers->ParallelFor(num_blocks, kBlock / 2, [&](int64_t first, int64_t last) {
      for (int64_t block = first; block < last; ++block) {
        int64_t sum = 0;
        for (int64_t bag = block * kBlock; bag < std::min((block + 1) * kBlock, num_bags); ++bag) sum += from[bag];
        starts[block] = sum;
      }
    });
    int64_t total = 0;
    for (int64_t& start : starts) total += std::exchange(start, total);
    workers->ParallelFor(num_blocks, kBlock, [&](int64_t first, int64_t last) {
      for (int64_t block = first; block < last; ++block) {
        int64_t at = starts[block];
        for (int64_t bag = block * kBlock; bag < std::min((block + 1) * kBlock, num_bags); ++bag) {
          to[bag] = at;
          at += from[bag];
        }
      }
    });
    to[num_bags] = total;
  }

 private:
  static constexpr int64_t kBlock = 32 * 1024;
};

REGISTER_KERNEL_BUILDER(Name("RankhouseOffsetsFromLengths").Device(tf::DEVICE_CPU), OffsetsFromLengthsOp);

}  // namespace
}  // namespace rankhouse
