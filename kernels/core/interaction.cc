#include "core/interaction.h"

#include <limits>

#include "core/status.h"

namespace rankhouse {
namespace {

// What is wrong with a field, or nullptr.
const char* FaultOf(const rh_interaction& interaction) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  if (interaction.batch_size < 0 || interaction.batch_size > kMost) return "a batch size of 0 to 2^31 - 1";
  if (interaction.dim < 1 || interaction.dim > kMost) return "a dim of 1 to 2^31 - 1";
  // So that no size below overflows.
  if (interaction.num_embeddings < 0 || interaction.num_embeddings > (1 << 15)) return "0 to 2^15 embeddings";
  if (interaction.has_bottom != 0 && interaction.has_bottom != 1) return "has_bottom 0 or 1";
  if (interaction.self_interaction != 0 && interaction.self_interaction != 1) return "self_interaction 0 or 1";
  return nullptr;
}

int64_t WidthOf(const rh_interaction& interaction) {
  const int64_t num_vectors = int64_t{interaction.num_embeddings} + interaction.has_bottom;
  const int64_t num_pairs = num_vectors * (num_vectors - 1) / 2 + (interaction.self_interaction != 0 ? num_vectors : 0);
  return (interaction.has_bottom != 0 ? interaction.dim : 0) + num_pairs;
}

}  // namespace

Interaction::Interaction(const rh_interaction* interaction) {
  Require(interaction != nullptr, "interaction is NULL");
  const char* fault = FaultOf(*interaction);
  Require(fault == nullptr, "an interaction of batch_size ", interaction->batch_size, ", dim ", interaction->dim,
          ", num_embeddings ", interaction->num_embeddings, ", has_bottom ", interaction->has_bottom,
          ", self_interaction ", interaction->self_interaction, ": expected ", fault);
  batch_size = interaction->batch_size;
  dim = interaction->dim;
  num_vectors = int64_t{interaction->num_embeddings} + interaction->has_bottom;
  has_bottom = interaction->has_bottom;
  self = interaction->self_interaction;
  width = WidthOf(*interaction);
}

void CheckInteractionArrays(const Interaction& interaction, const float* bottom, const float* embeddings,
                            const float* out) {
  if (interaction.batch_size == 0) return;
  Require(interaction.has_bottom == 0 || bottom != nullptr, "bottom or its gradient is NULL, but has_bottom is 1");
  Require(interaction.embeddings_width() == 0 || embeddings != nullptr, "embeddings or their gradient is NULL");
  Require(interaction.width == 0 || out != nullptr, "out or its gradient is NULL");
}

}  // namespace rankhouse

int64_t rh_dot_interaction_width(const rh_interaction* interaction) {
  if (interaction == nullptr || rankhouse::FaultOf(*interaction) != nullptr) return -1;
  return rankhouse::WidthOf(*interaction);
}
