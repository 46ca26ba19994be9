// DLRM's dot interaction on the CPU.
//
// A thread owns samples and computes all of a sample's products. For blocks of kColumns vectors and kDepth of their
// elements it writes the vectors down as columns, which makes the lanes of a register different pairs of one vector:
// a block of kRows vectors times two registers of columns then needs two loads and kRows broadcasts for 2 * kRows
// products. Sums run over the elements in order, so threads cannot change a bit. Bytes moved: see interaction.h.
#include <algorithm>
#include <cstring>

#include "core/interaction.h"
#include "core/status.h"
#include "cpu/parallel.h"
#include "cpu/vector.h"

namespace rankhouse {
namespace {

constexpr int64_t kColumns = 64;
constexpr int64_t kDepth = 128;
constexpr int kRows = 4;

using Sample = SampleVectors<const float>;

// The vectors of one block as columns, and the products of a block of rows with them.
struct alignas(64) Workspace {
  float columns[kDepth * kColumns];
  float products[kRows * kColumns];
};

// columns[d][c] = element first_element + d of vector first_column + c, for all c < stride: beyond the last vector it
// is there again, so that no register holds what was never written.
RH_INLINE void WriteColumns(const Sample& sample, int64_t first_column, int64_t num_columns, int64_t first_element,
                            int64_t depth, float* __restrict columns, int64_t stride) {
  for (int64_t c = 0; c < stride; c += 4) {
    const float* vectors[4];
    for (int64_t k = 0; k < 4; ++k) {
      vectors[k] = sample[first_column + std::min(c + k, num_columns - 1)] + first_element;
    }
    int64_t d = 0;
    for (; d + 4 <= depth; d += 4) Transpose4x4(vectors, d, columns + d * stride + c, stride);
    for (; d < depth; ++d) {
      for (int64_t k = 0; k < 4; ++k) columns[d * stride + c + k] = vectors[k][d];
    }
  }
}

// products[r][0 .. kLanes * kVectors) = rows[r] . columns, for kRows rows.
template <int kLanes, int kVectors>
RH_INLINE void Multiply(const float* const* rows, int64_t depth, const float* columns, int64_t stride,
                        float* products) {
  using Vector = typename VectorOf<kLanes>::Type;
  Vector sums[kRows][kVectors] = {};
  for (int64_t d = 0; d < depth; ++d) {
    const Vector* column = reinterpret_cast<const Vector*>(columns + d * stride);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int k = 0; k < kVectors; ++k) sums[r][k] += rows[r][d] * column[k];
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int k = 0; k < kVectors; ++k) reinterpret_cast<Vector*>(products + r * kColumns)[k] = sums[r][k];
  }
}

// Writes a row's products, in whole registers as long as those end before `end`: what they write too much belongs to
// rows that are written later.
template <int kLanes>
RH_INLINE void WriteProducts(const float* from, int64_t count, float* to, const float* end) {
  using Loose = typename VectorOf<kLanes>::Loose;
  int64_t c = 0;
  for (; c < count && kLanes <= end - (to + c); c += kLanes) {
    *reinterpret_cast<Loose*>(to + c) = *reinterpret_cast<const Loose*>(from + c);
  }
  for (; c < count; ++c) to[c] = from[c];
}

RH_INLINE void AddProducts(const float* from, int64_t count, float* to) {
  for (int64_t c = 0; c < count; ++c) to[c] += from[c];
}

// The pairs of all vectors with those of one block of columns.
template <int kLanes>
RH_INLINE void InteractBlock(const Interaction& interaction, const Sample& sample, int64_t first_column,
                             int64_t first_element, Workspace* work, float* pairs) {
  const int64_t num_columns = std::min(kColumns, interaction.num_vectors - first_column);
  const int64_t stride = (num_columns + kLanes - 1) / kLanes * kLanes;
  const int64_t depth = std::min(kDepth, interaction.dim - first_element);
  // With more columns than these, the rows that are written later have other columns that must stay.
  const bool has_all_columns = interaction.num_vectors <= kColumns;
  const float* end = has_all_columns ? pairs + interaction.FirstPair(interaction.num_vectors) : pairs;
  WriteColumns(sample, first_column, num_columns, first_element, depth, work->columns, stride);
  for (int64_t first_row = first_column; first_row < interaction.num_vectors; first_row += kRows) {
    const float* rows[kRows];
    for (int64_t r = 0; r < kRows; ++r) {
      rows[r] = sample[std::min(first_row + r, interaction.num_vectors - 1)] + first_element;
    }
    // The longest row of the block says how many columns are worth a product.
    const int64_t needed = std::min(num_columns, first_row + kRows - 1 + interaction.self - first_column);
    for (int64_t c = 0; c < needed; c += 2 * kLanes) {
      float* products = work->products + c;
      if (c + kLanes < needed) {
        Multiply<kLanes, 2>(rows, depth, work->columns + c, stride, products);
      } else {
        Multiply<kLanes, 1>(rows, depth, work->columns + c, stride, products);
      }
    }
    for (int64_t v = first_row; v < std::min(first_row + kRows, interaction.num_vectors); ++v) {
      const float* products = work->products + (v - first_row) * kColumns;
      const int64_t count = std::min(num_columns, v + interaction.self - first_column);
      float* to = pairs + interaction.FirstPair(v) + first_column;
      if (first_element > 0) {
        AddProducts(products, count, to);
      } else {
        WriteProducts<kLanes>(products, count, to, end);
      }
    }
  }
}

template <int kLanes>
RH_INLINE void InteractSamples(const Interaction& interaction, const float* bottom, const float* embeddings, float* out,
                               int64_t begin, int64_t end) {
  Workspace work;
  for (int64_t b = begin; b < end; ++b) {
    const Sample sample(interaction, bottom, embeddings, b);
    float* sample_out = out + b * interaction.width;
    if (interaction.has_bottom != 0) std::memcpy(sample_out, sample.bottom, interaction.dim * sizeof(float));
    for (int64_t c = 0; c < interaction.num_vectors; c += kColumns) {
      for (int64_t d = 0; d < interaction.dim; d += kDepth) {
        InteractBlock<kLanes>(interaction, sample, c, d, &work, sample_out + interaction.bottom_width());
      }
    }
  }
}

using Interact = void(const Interaction&, const float*, const float*, float*, int64_t, int64_t);

RH_TARGET_AVX512 void InteractAvx512(const Interaction& interaction, const float* bottom, const float* embeddings,
                                     float* out, int64_t begin, int64_t end) {
  InteractSamples<16>(interaction, bottom, embeddings, out, begin, end);
}

RH_TARGET_AVX2 void InteractAvx2(const Interaction& interaction, const float* bottom, const float* embeddings,
                                 float* out, int64_t begin, int64_t end) {
  InteractSamples<8>(interaction, bottom, embeddings, out, begin, end);
}

void InteractPlain(const Interaction& interaction, const float* bottom, const float* embeddings, float* out,
                   int64_t begin, int64_t end) {
  InteractSamples<4>(interaction, bottom, embeddings, out, begin, end);
}

void DotInteraction(const rh_interaction* raw, const float* bottom, const float* embeddings, float* out,
                    const rh_executor* executor) {
  const Interaction interaction(raw);
  CheckInteractionArrays(interaction, bottom, embeddings, out);
  const int lanes = SimdLanes();
  Interact* const interact = lanes == 16 ? InteractAvx512 : lanes == 8 ? InteractAvx2 : InteractPlain;
  const int64_t num_products = interaction.num_vectors * interaction.num_vectors * interaction.dim;
  ParallelFor(executor, interaction.batch_size, num_products / 16 + interaction.width,
              [&](int64_t begin, int64_t end) { interact(interaction, bottom, embeddings, out, begin, end); });
}

}  // namespace
}  // namespace rankhouse

int rh_dot_interaction(const rh_interaction* interaction, const float* bottom, const float* embeddings, float* out,
                       const rh_executor* executor) {
  return rankhouse::Guard([&] { rankhouse::DotInteraction(interaction, bottom, embeddings, out, executor); });
}
