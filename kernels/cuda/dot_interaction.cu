// DLRM's dot interaction on a GPU.
//
// The products of a sample's vectors with each other are a matrix, of which tiles of 32 x 32 that reach below its
// diagonal are made. 64 threads own a tile, and each of them 4 x 4 of its products; they go through the columns in
// steps of 32, which they share in shared memory. Each product is added up by one thread in the order of the columns,
// so the result is always the same bits. Bytes moved: with up to 32 vectors, each is read once.
#include "core/interaction.h"
#include "cuda/group.cuh"

namespace rankhouse {
namespace {

constexpr int kTile = 32;                             // vectors
constexpr int kTileThreads = 64;                      // of one tile
constexpr int kTiles = kBlockThreads / kTileThreads;  // of one block
constexpr int kPitch = kTile + 4;                     // floats from row to row in shared memory: no bank is asked twice
constexpr int kSide = 8;                              // threads along each side of a tile
constexpr int kProducts = kTile / kSide;              // along each side of what a thread owns

struct Forward {
  Interaction interaction;
  const float* bottom;
  const float* embeddings;
  float* out;
  int64_t num_tile_pairs;  // of one sample
};

// Which tiles of vectors a block of products joins: tiles (i, j), j <= i, by rows.
struct TilePair {
  int64_t i = 0;
  int64_t j;

  __device__ explicit TilePair(int64_t index) {
    while ((i + 1) * (i + 2) / 2 <= index) ++i;
    j = index - i * (i + 1) / 2;
  }
};

// Reads columns of a tile of vectors into shared memory; what is outside of it becomes 0.
template <int kColumns>
__device__ void ReadTile(const SampleVectors<const float>& vectors, int64_t num_vectors, int64_t first, int64_t column,
                         int thread, float (*tile)[kPitch]) {
  constexpr int kPerRow = kTile / kColumns;
  for (int i = thread; i < kTile * kPerRow; i += kTileThreads) {
    const int row = i / kPerRow;
    const int at = i % kPerRow * kColumns;
    Columns<kColumns> part = {};
    if (first + row < num_vectors && column + at < vectors.dim) {
      part = *reinterpret_cast<const Columns<kColumns>*>(vectors[first + row] + column + at);
    }
    *reinterpret_cast<Columns<kColumns>*>(&tile[row][at]) = part;
  }
}

__device__ void AddProducts(const float (*a)[kPitch], const float (*b)[kPitch], int row, int column,
                            float (*sums)[kProducts]) {
  for (int d = 0; d < kTile; d += 4) {
    Columns<4> left[kProducts];
    Columns<4> right[kProducts];
    for (int r = 0; r < kProducts; ++r) {
      left[r] = *reinterpret_cast<const Columns<4>*>(&a[row + kSide * r][d]);
      right[r] = *reinterpret_cast<const Columns<4>*>(&b[column + kSide * r][d]);
    }
    for (int e = 0; e < 4; ++e) {
      for (int r = 0; r < kProducts; ++r) {
        for (int c = 0; c < kProducts; ++c) sums[r][c] = fmaf(left[r].value[e], right[c].value[e], sums[r][c]);
      }
    }
  }
}

template <int kColumns>
__global__ void MultiplyPairs(const __grid_constant__ Forward call) {
  alignas(16) __shared__ float tiles[kTiles][2][kTile][kPitch];
  const Interaction& interaction = call.interaction;
  const int tile = static_cast<int>(threadIdx.x) / kTileThreads;
  const int thread = static_cast<int>(threadIdx.x) % kTileThreads;
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kTiles + tile;
  const int64_t sample = index / call.num_tile_pairs;
  const bool is_there = sample < interaction.batch_size;
  const TilePair pair(index % call.num_tile_pairs);
  const SampleVectors<const float> vectors(interaction, call.bottom, call.embeddings, is_there ? sample : 0);
  float (*a)[kPitch] = tiles[tile][0];
  float (*b)[kPitch] = pair.i == pair.j ? a : tiles[tile][1];
  const int row = thread / kSide;
  const int column = thread % kSide;
  float sums[kProducts][kProducts] = {};
  for (int64_t d = 0; d < interaction.dim; d += kTile) {
    __syncthreads();
    if (is_there) ReadTile<kColumns>(vectors, interaction.num_vectors, pair.i * kTile, d, thread, a);
    if (is_there && a != b) ReadTile<kColumns>(vectors, interaction.num_vectors, pair.j * kTile, d, thread, b);
    __syncthreads();
    if (is_there) AddProducts(a, b, row, column, sums);
  }
  if (!is_there) return;
  float* out = call.out + sample * interaction.width;
  for (int64_t d = thread; pair.i == 0 && d < interaction.bottom_width(); d += kTileThreads) out[d] = vectors[0][d];
  for (int r = 0; r < kProducts; ++r) {
    const int64_t i = pair.i * kTile + row + kSide * r;
    for (int c = 0; c < kProducts; ++c) {
      const int64_t j = pair.j * kTile + column + kSide * c;
      if (i >= interaction.num_vectors || j >= i + interaction.self) continue;
      out[interaction.bottom_width() + interaction.FirstPair(i) + j] = sums[r][c];
    }
  }
}

// True where all vectors can be read as Columns<4>.
bool VectorsByFour(const Interaction& interaction, const float* bottom, const float* embeddings) {
  return interaction.dim % 4 == 0 && IsAligned(bottom, 16) && IsAligned(embeddings, 16);
}

void DotInteraction(const Interaction& interaction, const float* bottom, const float* embeddings, float* out,
                    cudaStream_t stream) {
  CheckInteractionArrays(interaction, bottom, embeddings, out);
  const int64_t tiles = std::max<int64_t>(1, DivideUp(interaction.num_vectors, kTile));
  const Forward call = {interaction, bottom, embeddings, out, tiles * (tiles + 1) / 2};
  if (interaction.num_vectors == 0) return;
  Launch(VectorsByFour(interaction, bottom, embeddings) ? MultiplyPairs<4> : MultiplyPairs<1>,
         DivideUp(interaction.batch_size * call.num_tile_pairs, kTiles), stream, call);
}

}  // namespace
}  // namespace rankhouse

int rh_dot_interaction_cuda(const rh_interaction* interaction, const float* bottom, const float* embeddings, float* out,
                            void* stream) {
  return rankhouse::Guard([&] {
    rankhouse::DotInteraction(rankhouse::Interaction(interaction), bottom, embeddings, out,
                              static_cast<cudaStream_t>(stream));
  });
}
