// A vocabulary that learns keys as they come: what rankhouse/vocabulary.h promises, in C++.
#ifndef RANKHOUSE_CPU_VOCABULARY_H_
#define RANKHOUSE_CPU_VOCABULARY_H_

#include <cstdint>
#include <limits>

#include "cpu/eviction_order.h"
#include "cpu/free_ids.h"
#include "cpu/key_table.h"
#include "cpu/scratch.h"
#include "rankhouse/kernels.h"

// Functions throw Error or std::bad_alloc before they have changed anything that can be seen.
struct rh_vocabulary {
 public:
  explicit rh_vocabulary(const rh_vocabulary_options& options);

  void Lookup(const int64_t* keys, int64_t num_keys, int64_t* ids, const rh_executor* executor) const;
  int64_t Observe(const int64_t* keys, const int64_t* counts, int64_t num_keys, int64_t step, rh_evicted* evicted);
  int64_t Evict(int64_t min_step, int64_t min_count, rh_evicted* evicted);
  void Export(int64_t* keys, int64_t* ids, int64_t* counts, int64_t* last_steps) const;
  void Import(const int64_t* keys, const int64_t* ids, const int64_t* counts, const int64_t* last_steps,
              int64_t num_entries);

  int64_t size() const { return table_.size() - num_candidates_; }
  int64_t num_entries() const { return table_.size(); }

 private:
  struct Step;

  int64_t IdOf(int64_t tag) const { return tag > 0 ? first_id_ + (tag - 1) : unknown_id_; }
  void FindKeys(Step* step) const;
  void Prepare(Step* step);
  bool TakeTag(Step* step, int64_t* tag) noexcept;
  bool Admit(Step* step, int64_t key, int64_t count) noexcept;
  void Remember(Step* step, int64_t key, int64_t count) noexcept;
  rankhouse::FreeIds FreeTagsBeside(const int64_t* ids, int64_t num_entries) const;

  const int64_t first_id_;
  const int64_t max_keys_;
  const int64_t unknown_id_;
  const int64_t min_count_;
  const int64_t max_candidates_;
  const bool evicts_;

  rankhouse::KeyTable table_;
  rankhouse::FreeIds free_tags_;  // in the place of ids, as the table has them
  rankhouse::EvictionOrder key_order_;
  rankhouse::EvictionOrder candidate_order_;
  int64_t num_candidates_ = 0;
  int64_t last_step_ = std::numeric_limits<int64_t>::min();
  rh_scratch scratch_;  // of Observe, so that steps of a steady size allocate nothing
};

#endif  // RANKHOUSE_CPU_VOCABULARY_H_
