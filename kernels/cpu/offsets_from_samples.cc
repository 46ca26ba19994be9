// From sparse to offsets, in one pass over the samples: 8 bytes read for each id, 8 written for each bag.
#include "core/status.h"

namespace rankhouse {
namespace {

void OffsetsFromSamples(const int64_t* samples, int64_t stride, int64_t num_ids, int64_t batch_size, int64_t* offsets) {
  Require(num_ids >= 0 && batch_size >= 0, "negative size: num_ids ", num_ids, ", batch_size ", batch_size);
  Require(num_ids == 0 || samples != nullptr, "samples is NULL, but num_ids is ", num_ids);
  Require(num_ids == 0 || stride >= 1, "stride is ", stride, ": expected at least 1");
  Require(offsets != nullptr, "offsets is NULL");
  int64_t begun = 0;  // bags whose offset is written
  int64_t previous = 0;
  for (int64_t n = 0; n < num_ids; ++n) {
    const int64_t sample = samples[n * stride];
    Require(previous <= sample && sample < batch_size, "the sample of id ", n, " is ", sample, ": expected ", previous,
            " (that of the id before it) to ", batch_size - 1);
    while (begun <= sample) offsets[begun++] = n;
    previous = sample;
  }
  while (begun <= batch_size) offsets[begun++] = num_ids;
}

}  // namespace
}  // namespace rankhouse

int rh_offsets_from_samples(const int64_t* samples, int64_t stride, int64_t num_ids, int64_t batch_size,
                            int64_t* offsets) {
  return rankhouse::Guard([&] { rankhouse::OffsetsFromSamples(samples, stride, num_ids, batch_size, offsets); });
}
