// DLRM's dot interaction. Include rankhouse/kernels.h.
#ifndef RANKHOUSE_INTERACTION_H_
#define RANKHOUSE_INTERACTION_H_

#include "rankhouse/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

// The dot products of all pairs of a sample's vectors (Naumov et al. 2019, https://arxiv.org/abs/1906.00091).
// The vectors of a sample are that of `bottom` (the dense features, if there are any) and then the F embeddings.
typedef struct rh_interaction {
  int64_t batch_size;        // B
  int64_t dim;               // D >= 1
  int32_t num_embeddings;    // F, 0 to 2^15
  int32_t has_bottom;        // 1: V = F + 1 vectors; 0: V = F
  int32_t self_interaction;  // 1: pairs of a vector with itself as well
} rh_interaction;

// Returns the width W of an interaction's output: D where there is a bottom, plus V * (V - 1) / 2 pairs (V * (V + 1) /
// 2 with self_interaction); or -1 where a field is out of its range.
RH_API int64_t rh_dot_interaction_width(const rh_interaction* interaction);

// out [B, W]: bottom's vector (where there is one), then the products of the pairs (1,0), (2,0), (2,1), (3,0), ...: the
// lower triangle by rows (with self_interaction (0,0), (1,0), (1,1), ...).
// bottom [B, D] or NULL, embeddings [B, F * D].
// Order: the same for every number of threads, but products may be fused into sums, so instruction sets and devices
// agree to rounding only.
// Bytes: B * V * D * 4 read, B * W * 4 written.
RH_API int rh_dot_interaction(const rh_interaction* interaction, const float* bottom, const float* embeddings,
                              float* out, const rh_executor* executor);

// Its backward: from grad [B, W], bottom_grad [B, D] (NULL where there is no bottom) and embeddings_grad [B, F * D].
RH_API int rh_dot_interaction_gradient(const rh_interaction* interaction, const float* bottom, const float* embeddings,
                                       const float* grad, float* bottom_grad, float* embeddings_grad,
                                       const rh_executor* executor);

// On a GPU; no workspace.
RH_API int rh_dot_interaction_cuda(const rh_interaction* interaction, const float* bottom, const float* embeddings,
                                   float* out, void* stream);
RH_API int rh_dot_interaction_gradient_cuda(const rh_interaction* interaction, const float* bottom,
                                            const float* embeddings, const float* grad, float* bottom_grad,
                                            float* embeddings_grad, void* stream);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // RANKHOUSE_INTERACTION_H_
