// Conversions of rows, memory for them, and the dot interaction.
#include <cmath>

#include "support.h"

namespace fuzz {
namespace {

int64_t RandomDim(Random* random) { return random->Chance(70) ? random->Between(1, 40) : random->Between(1, 300); }

// How far a value may be off after the way there and back.
float BoundOf(int32_t type, float value, float range) {
  if (type == RH_FLOAT16) return std::abs(value) * 0x1p-11f + 0x1p-25f;
  if (type == RH_BFLOAT16) return std::abs(value) * 0x1p-8f;
  if (type == RH_INT8_ROWWISE) return range / 509.0f + 1e-6f;
  return 0;
}

void CheckBadConversions(Random* random, Guarded<float>& rows, int64_t num_rows, int64_t dim, int32_t type,
                         Guarded<char>& quantized) {
  const auto both = [&](int64_t n, int64_t d, int32_t t, int64_t stride) {
    const RandomExecutor executor(random);
    CHECK(rh_quantize_rows(rows.data(), n, d, t, stride, quantized.data(), executor.get()) == RH_INVALID_ARGUMENT);
    CHECK(rh_dequantize_rows(quantized.data(), n, d, t, stride, rows.data(), executor.get()) == RH_INVALID_ARGUMENT);
  };
  switch (random->Between(0, 3)) {
    case 0:
      return both(random->OneOf<int64_t>({-1, INT64_MIN}), dim, type, 0);
    case 1:
      return both(num_rows, random->OneOf<int64_t>({0, -1, INT64_MIN, INT64_MAX}), type, 0);
    case 2:
      return both(num_rows, dim, random->OneOf<int32_t>({-1, 4, INT32_MAX}), 0);
    default:
      return both(num_rows, dim, type, random->OneOf<int64_t>({-1, INT64_MIN, rh_row_bytes(type, dim) - 1}));
  }
}

}  // namespace

void FuzzRows(Random* random) {
  const int64_t num_rows = random->Chance(5) ? random->Between(0, 5000) : random->Between(0, 20);
  const int64_t dim = RandomDim(random);
  const int32_t type = static_cast<int32_t>(random->Between(RH_FLOAT32, RH_INT8_ROWWISE));
  const int64_t row_bytes = rh_row_bytes(type, dim);
  const int64_t stride = row_bytes + random->Between(0, 9);
  Guarded<float> rows(random, num_rows * dim);
  for (float& value : rows) value = random->Number();
  Guarded<char> quantized(random, num_rows == 0 ? 0 : (num_rows - 1) * stride + row_bytes);
  const RandomExecutor executor(random);
  CHECK(rh_quantize_rows(rows.OrNull(), num_rows, dim, type, stride, quantized.OrNull(), executor.get()) == RH_OK);
  Guarded<float> back(random, num_rows * dim);
  CHECK(rh_dequantize_rows(quantized.OrNull(), num_rows, dim, type, stride, back.OrNull(), executor.get()) == RH_OK);
  for (int64_t r = 0; r < num_rows; ++r) Record(quantized.data() + r * stride, row_bytes);
  back.Record();
  for (int64_t i = 0; i < rows.size(); ++i) CHECK(std::abs(rows[i] - back[i]) <= BoundOf(type, rows[i], 4.0f));
  CheckBadConversions(random, rows, num_rows, dim, type, quantized);
  if (num_rows > 0 && type == RH_INT8_ROWWISE) {
    rows[random->Between(0, rows.size() - 1)] = random->OneOf({NAN, INFINITY, -INFINITY});
    CHECK(rh_quantize_rows(rows.data(), num_rows, dim, type, stride, quantized.data(), executor.get()) ==
          RH_INVALID_ARGUMENT);
  }

  void* memory = nullptr;
  const int64_t bytes = random->Between(1, 5'000'000);
  CHECK(rh_allocate(bytes, &memory) == RH_OK && memory != nullptr);
  CHECK(static_cast<char*>(memory)[0] == 0 && static_cast<char*>(memory)[bytes - 1] == 0);
  static_cast<char*>(memory)[bytes - 1] = 1;
  CHECK(rh_advise_huge_pages(static_cast<char*>(memory) + bytes / 3, bytes / 2) == RH_OK);
  CHECK(static_cast<char*>(memory)[bytes - 1] == 1);
  rh_free(memory, bytes);
  CHECK(rh_allocate(random->OneOf<int64_t>({-1, INT64_MIN, INT64_MAX}), &memory) != RH_OK);
}

void FuzzInteraction(Random* random) {
  rh_interaction interaction = {};
  interaction.batch_size = random->Between(0, 9);
  interaction.dim = RandomDim(random);
  interaction.num_embeddings =
      static_cast<int32_t>(random->Chance(80) ? random->Between(0, 30) : random->Between(0, 140));
  interaction.has_bottom = random->Chance(50);
  interaction.self_interaction = random->Chance(50);
  const int64_t samples = interaction.batch_size, dim = interaction.dim;
  const int64_t width = rh_dot_interaction_width(&interaction);
  const int64_t vectors = interaction.num_embeddings + interaction.has_bottom;
  Guarded<float> bottom(random, interaction.has_bottom * samples * dim);
  Guarded<float> embeddings(random, samples * interaction.num_embeddings * dim);
  for (float& value : bottom) value = random->Number();
  for (float& value : embeddings) value = random->Number();
  Guarded<float> out(random, samples * width), grad(random, samples * width), again(samples * width);
  const RandomExecutor executor(random), other(random);
  CHECK(rh_dot_interaction(&interaction, bottom.OrNull(), embeddings.OrNull(), out.OrNull(), executor.get()) == RH_OK);
  CHECK(rh_dot_interaction(&interaction, bottom.OrNull(), embeddings.OrNull(), again.OrNull(), other.get()) == RH_OK);
  CHECK(out == again);

  // sum(grad * out) is of degree 2 in the vectors (1 in the copied bottom), so its gradient times them tells it again.
  double loss = 0, bottom_part = 0, scale = 1;
  for (int64_t i = 0; i < out.size(); ++i) {
    grad[i] = random->Number();
    loss += static_cast<double>(grad[i]) * out[i];
    scale += std::abs(static_cast<double>(grad[i]) * out[i]);
    if (interaction.has_bottom != 0 && i % width < dim) bottom_part += static_cast<double>(grad[i]) * out[i];
  }
  Guarded<float> bottom_grad(random, bottom.size()), embeddings_grad(random, embeddings.size());
  CHECK(rh_dot_interaction_gradient(&interaction, bottom.OrNull(), embeddings.OrNull(), grad.OrNull(),
                                    bottom_grad.OrNull(), embeddings_grad.OrNull(), executor.get()) == RH_OK);
  double twice = 0;
  for (int64_t i = 0; i < bottom.size(); ++i) twice += static_cast<double>(bottom[i]) * bottom_grad[i];
  for (int64_t i = 0; i < embeddings.size(); ++i) twice += static_cast<double>(embeddings[i]) * embeddings_grad[i];
  CHECK(std::abs(twice - (2 * loss - bottom_part)) <= 1e-4 * scale * static_cast<double>(vectors + 1));

  rh_interaction bad = interaction;
  bad.batch_size = 1;
  if (random->Chance(50))
    bad.dim = random->OneOf<int64_t>({0, -1, INT64_MIN, INT64_MAX});
  else
    bad.num_embeddings = random->OneOf<int32_t>({-1, INT32_MIN, INT32_MAX});
  CHECK(rh_dot_interaction_width(&bad) == -1);
  CHECK(rh_dot_interaction(&bad, bottom.data(), embeddings.data(), out.data(), executor.get()) == RH_INVALID_ARGUMENT);
  CHECK(rh_dot_interaction_gradient(&bad, bottom.data(), embeddings.data(), grad.data(), bottom_grad.data(),
                                    embeddings_grad.data(), executor.get()) == RH_INVALID_ARGUMENT);
}

}  // namespace fuzz
