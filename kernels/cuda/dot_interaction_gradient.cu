// The backward of DLRM's dot interaction on a GPU.
//
// The gradient of a sample's vectors is a symmetric matrix (the gradients of the pairs, with the diagonal twice) times
// the vectors. A block owns 32 vectors of a sample: it goes through all vectors 32 at a time, with their part of the
// matrix and 64 of their columns in shared memory. Each element is added up by one thread in the order of the vectors,
// so the result is always the same bits. Bytes moved: with up to 32 vectors, each is read and its gradient written
// once.
#include "core/interaction.h"
#include "cuda/group.cuh"

namespace rankhouse {
namespace {

constexpr int kTile = 32;       // vectors
constexpr int kWidth = 64;      // columns
constexpr int kThreadRows = 2;  // vectors of a thread; it has 4 columns of each
constexpr int kThreadsPerRow = kWidth / 4;
static_assert(kTile / kThreadRows * kThreadsPerRow == kBlockThreads, "the threads of a block cover a tile");

struct Backward {
  Interaction interaction;
  const float* bottom;
  const float* embeddings;
  const float* grad;
  float* bottom_grad;
  float* embeddings_grad;
  int64_t num_tiles;  // of one sample
};

// Element (i, j) of the matrix.
__device__ float PairGradient(const Interaction& interaction, const float* grad, int64_t i, int64_t j) {
  if (i >= interaction.num_vectors || j >= interaction.num_vectors) return 0.0f;
  const float* pairs = grad + interaction.bottom_width();
  if (i == j) return interaction.self != 0 ? 2.0f * pairs[interaction.FirstPair(i) + i] : 0.0f;
  return pairs[interaction.FirstPair(max(i, j)) + min(i, j)];
}

template <int kColumns>
__global__ void MultiplyGradients(const __grid_constant__ Backward call) {
  alignas(16) __shared__ float vectors[kTile][kWidth];
  __shared__ float matrix[kTile][kTile + 1];
  const Interaction& interaction = call.interaction;
  const int64_t sample = blockIdx.x / call.num_tiles;
  const int64_t first = blockIdx.x % call.num_tiles * kTile;
  const SampleVectors<const float> from(interaction, call.bottom, call.embeddings, sample);
  const SampleVectors<float> to(interaction, call.bottom_grad, call.embeddings_grad, sample);
  const float* grad = call.grad + sample * interaction.width;
  const int thread = static_cast<int>(threadIdx.x);
  const int row = thread / kThreadsPerRow * kThreadRows;
  const int column = thread % kThreadsPerRow * 4;
  for (int64_t d = 0; d < interaction.dim; d += kWidth) {
    Columns<4> sums[kThreadRows] = {};
    for (int64_t other = 0; other < interaction.num_vectors; other += kTile) {
      __syncthreads();
      for (int i = thread; i < kTile * kTile; i += kBlockThreads) {
        matrix[i / kTile][i % kTile] = PairGradient(interaction, grad, first + i / kTile, other + i % kTile);
      }
      for (int i = thread; i < kTile * kWidth / kColumns; i += kBlockThreads) {
        const int64_t v = other + i / (kWidth / kColumns);
        const int at = i % (kWidth / kColumns) * kColumns;
        Columns<kColumns> part = {};
        if (v < interaction.num_vectors && d + at < interaction.dim) {
          part = *reinterpret_cast<const Columns<kColumns>*>(from[v] + d + at);
        }
        *reinterpret_cast<Columns<kColumns>*>(&vectors[v - other][at]) = part;
      }
      __syncthreads();
      for (int v = 0; v < kTile; ++v) {
        const auto part = *reinterpret_cast<const Columns<4>*>(&vectors[v][column]);
        for (int r = 0; r < kThreadRows; ++r) {
          for (int c = 0; c < 4; ++c) sums[r].value[c] = fmaf(matrix[row + r][v], part.value[c], sums[r].value[c]);
        }
      }
    }
    for (int r = 0; r < kThreadRows; ++r) {
      const int64_t v = first + row + r;
      for (int c = 0; v < interaction.num_vectors && c < 4 && d + column + c < interaction.dim; ++c) {
        const int64_t at = d + column + c;
        to[v][at] = v < interaction.has_bottom ? grad[at] + sums[r].value[c] : sums[r].value[c];
      }
    }
  }
}

void DotInteractionGradient(const Interaction& interaction, const float* bottom, const float* embeddings,
                            const float* grad, float* bottom_grad, float* embeddings_grad, cudaStream_t stream) {
  CheckInteractionArrays(interaction, bottom, embeddings, grad);
  CheckInteractionArrays(interaction, bottom_grad, embeddings_grad, grad);
  const Backward call = {
      interaction, bottom, embeddings, grad, bottom_grad, embeddings_grad, DivideUp(interaction.num_vectors, kTile)};
  const bool by_four = interaction.dim % 4 == 0 && IsAligned(bottom, 16) && IsAligned(embeddings, 16);
  Launch(by_four ? MultiplyGradients<4> : MultiplyGradients<1>, interaction.batch_size * call.num_tiles, stream, call);
}

}  // namespace
}  // namespace rankhouse

int rh_dot_interaction_gradient_cuda(const rh_interaction* interaction, const float* bottom, const float* embeddings,
                                     const float* grad, float* bottom_grad, float* embeddings_grad, void* stream) {
  return rankhouse::Guard([&] {
    rankhouse::DotInteractionGradient(rankhouse::Interaction(interaction), bottom, embeddings, grad, bottom_grad,
                                      embeddings_grad, static_cast<cudaStream_t>(stream));
  });
}
