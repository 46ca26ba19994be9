// A checked rh_interaction, as all devices see it.
#ifndef RANKHOUSE_CORE_INTERACTION_H_
#define RANKHOUSE_CORE_INTERACTION_H_

#include <cstdint>

#include "core/host_device.h"
#include "rankhouse/interaction.h"

namespace rankhouse {

struct Interaction {
  int64_t batch_size;
  int64_t dim;
  int64_t num_vectors;  // V
  int64_t has_bottom;   // 1 or 0
  int64_t self;         // 1: a vector's pair with itself counts
  int64_t width;        // W

  // Throws Error where a field is out of its range.
  explicit Interaction(const rh_interaction* interaction);

  // Where the pairs of vector v begin, among a sample's pairs: v pairs with each vector before it (and itself).
  RH_HOST_DEVICE int64_t FirstPair(int64_t v) const { return v * (v - 1) / 2 + (self != 0 ? v : 0); }
  // Where the pairs begin in a sample's output.
  RH_HOST_DEVICE int64_t bottom_width() const { return has_bottom != 0 ? dim : 0; }
  // Floats of one sample's embeddings.
  RH_HOST_DEVICE int64_t embeddings_width() const { return (num_vectors - has_bottom) * dim; }
};

// The vectors of one sample, or their gradients: that of the bottom, if there is one, and then the embeddings.
template <typename Float>
struct SampleVectors {
  Float* bottom;
  Float* embeddings;
  int64_t dim;
  int64_t has_bottom;

  RH_HOST_DEVICE SampleVectors(const Interaction& interaction, Float* bottom_of_all, Float* embeddings_of_all,
                               int64_t sample)
      : bottom(bottom_of_all + sample * interaction.bottom_width()),
        embeddings(embeddings_of_all + sample * interaction.embeddings_width()),
        dim(interaction.dim),
        has_bottom(interaction.has_bottom) {}

  RH_HOST_DEVICE Float* operator[](int64_t v) const {
    return v < has_bottom ? bottom : embeddings + (v - has_bottom) * dim;
  }
};

// Checks the pointers of a call: bottom (or its gradient) is there where the interaction has one, the others where they
// have elements. Throws Error.
void CheckInteractionArrays(const Interaction& interaction, const float* bottom, const float* embeddings,
                            const float* out);

}  // namespace rankhouse

#endif  // RANKHOUSE_CORE_INTERACTION_H_
