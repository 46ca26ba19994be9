// The backward of DLRM's dot interaction on the CPU.
//
// The gradient of vector v is the sum over all others u of grad(u, v) * vector u. A thread owns samples. For kRows
// vectors and a strip of one or two registers of their elements the sums stay in registers: each u costs one or two
// loads and kRows broadcasts of grad, straight from the triangle. Sums run over u in order, so threads cannot change a
// bit. Bytes moved: B * (2 * V * D + W) * 4.
#include "core/interaction.h"
#include "core/status.h"
#include "cpu/parallel.h"
#include "cpu/vector.h"

namespace rankhouse {
namespace {

constexpr int kMaxRows = 4;

struct Sample {
  SampleVectors<const float> vectors;
  SampleVectors<float> gradients;
  const float* bottom_grad;  // of the bottom's copy in the output
  const float* pairs_grad;
};

// sums[r] += weights[r] * the strip, for the strip of vector u at `from`.
template <int kRows, int kLanes, int kVectors, typename Vector = typename VectorOf<kLanes>::Type>
RH_INLINE void AddScaled(const float* from, const float* const* weights, int64_t index, Vector (*sums)[kVectors]) {
  using Loose = typename VectorOf<kLanes>::Loose;
  const Loose* strip = reinterpret_cast<const Loose*>(from);
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int k = 0; k < kVectors; ++k) sums[r][k] += weights[r][index] * strip[k];
  }
}

// The gradients of kRows vectors, elements [element, element + kLanes * kVectors).
template <int kRows, int kLanes, int kVectors>
RH_INLINE void DifferentiateStrip(const Interaction& interaction, const Sample& sample, int64_t first_row,
                                  int64_t element) {
  using Vector = typename VectorOf<kLanes>::Type;
  using Loose = typename VectorOf<kLanes>::Loose;
  Vector sums[kRows][kVectors] = {};
  if (first_row < interaction.has_bottom) {
    for (int k = 0; k < kVectors; ++k) sums[0][k] = reinterpret_cast<const Loose*>(sample.bottom_grad + element)[k];
  }
  const float* before[kRows];  // the pairs of each row with the vectors before it
  for (int r = 0; r < kRows; ++r) before[r] = sample.pairs_grad + interaction.FirstPair(first_row + r);
  for (int64_t u = 0; u < first_row; ++u) {
    AddScaled<kRows, kLanes, kVectors>(sample.vectors[u] + element, before, u, sums);
  }
  for (int q = 0; q < kRows; ++q) {
    const Loose* strip = reinterpret_cast<const Loose*>(sample.vectors[first_row + q] + element);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      float weight = 0;
      if (q < r) weight = before[r][first_row + q];
      if (q > r) weight = before[q][first_row + r];
      if (q == r && interaction.self != 0) weight = 2 * before[r][first_row + r];
#pragma GCC unroll 2
      for (int k = 0; k < kVectors; ++k) sums[r][k] += weight * strip[k];
    }
  }
  const float* after[kRows];  // the pairs of vector u with each row
  for (int r = 0; r < kRows; ++r) after[r] = sample.pairs_grad + first_row + r;
  for (int64_t u = first_row + kRows; u < interaction.num_vectors; ++u) {
    AddScaled<kRows, kLanes, kVectors>(sample.vectors[u] + element, after, interaction.FirstPair(u), sums);
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    Loose* strip = reinterpret_cast<Loose*>(sample.gradients[first_row + r] + element);
    for (int k = 0; k < kVectors; ++k) strip[k] = sums[r][k];
  }
}

// All elements of the gradients of kRows vectors, in strips as wide as fit.
template <int kRows, int kLanes>
RH_INLINE void DifferentiateRows(const Interaction& interaction, const Sample& sample, int64_t first_row) {
  int64_t d = 0;
  const int64_t dim = interaction.dim;
  for (; d + 2 * kLanes <= dim; d += 2 * kLanes) {
    DifferentiateStrip<kRows, kLanes, 2>(interaction, sample, first_row, d);
  }
  for (; d + kLanes <= dim; d += kLanes) DifferentiateStrip<kRows, kLanes, 1>(interaction, sample, first_row, d);
  if (kLanes > 4) {
    for (; d + 4 <= dim; d += 4) DifferentiateStrip<kRows, 4, 1>(interaction, sample, first_row, d);
  }
  for (; d < dim; ++d) DifferentiateStrip<kRows, 1, 1>(interaction, sample, first_row, d);
}

template <int kLanes>
RH_INLINE void DifferentiateSamples(const Interaction& interaction, const float* bottom, const float* embeddings,
                                    const float* grad, float* bottom_grad, float* embeddings_grad, int64_t begin,
                                    int64_t end) {
  for (int64_t b = begin; b < end; ++b) {
    const float* sample_grad = grad + b * interaction.width;
    const Sample sample = {{interaction, bottom, embeddings, b},
                           {interaction, bottom_grad, embeddings_grad, b},
                           sample_grad,
                           sample_grad + interaction.bottom_width()};
    int64_t v = 0;
    for (; v + kMaxRows <= interaction.num_vectors; v += kMaxRows) {
      DifferentiateRows<kMaxRows, kLanes>(interaction, sample, v);
    }
    for (; v < interaction.num_vectors; ++v) DifferentiateRows<1, kLanes>(interaction, sample, v);
  }
}

using Differentiate = void(const Interaction&, const float*, const float*, const float*, float*, float*, int64_t,
                           int64_t);

RH_TARGET_AVX512 void DifferentiateAvx512(const Interaction& interaction, const float* bottom, const float* embeddings,
                                          const float* grad, float* bottom_grad, float* embeddings_grad, int64_t begin,
                                          int64_t end) {
  DifferentiateSamples<16>(interaction, bottom, embeddings, grad, bottom_grad, embeddings_grad, begin, end);
}

RH_TARGET_AVX2 void DifferentiateAvx2(const Interaction& interaction, const float* bottom, const float* embeddings,
                                      const float* grad, float* bottom_grad, float* embeddings_grad, int64_t begin,
                                      int64_t end) {
  DifferentiateSamples<8>(interaction, bottom, embeddings, grad, bottom_grad, embeddings_grad, begin, end);
}

void DifferentiatePlain(const Interaction& interaction, const float* bottom, const float* embeddings, const float* grad,
                        float* bottom_grad, float* embeddings_grad, int64_t begin, int64_t end) {
  DifferentiateSamples<4>(interaction, bottom, embeddings, grad, bottom_grad, embeddings_grad, begin, end);
}

void DotInteractionGradient(const rh_interaction* raw, const float* bottom, const float* embeddings, const float* grad,
                            float* bottom_grad, float* embeddings_grad, const rh_executor* executor) {
  const Interaction interaction(raw);
  CheckInteractionArrays(interaction, bottom, embeddings, grad);
  CheckInteractionArrays(interaction, bottom_grad, embeddings_grad, grad);
  const int lanes = SimdLanes();
  Differentiate* const differentiate = lanes == 16  ? DifferentiateAvx512
                                       : lanes == 8 ? DifferentiateAvx2
                                                    : DifferentiatePlain;
  const int64_t num_products = interaction.num_vectors * interaction.num_vectors * interaction.dim;
  ParallelFor(executor, interaction.batch_size, num_products / 16 + interaction.width, [&](int64_t begin, int64_t end) {
    differentiate(interaction, bottom, embeddings, grad, bottom_grad, embeddings_grad, begin, end);
  });
}

}  // namespace
}  // namespace rankhouse

int rh_dot_interaction_gradient(const rh_interaction* interaction, const float* bottom, const float* embeddings,
                                const float* grad, float* bottom_grad, float* embeddings_grad,
                                const rh_executor* executor) {
  return rankhouse::Guard([&] {
    rankhouse::DotInteractionGradient(interaction, bottom, embeddings, grad, bottom_grad, embeddings_grad, executor);
  });
}
