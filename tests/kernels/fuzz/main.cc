// Calls every operation with random arguments, good and bad: fuzz SEED ROUNDS SECONDS, whichever takes longer. The same
// seed makes the same calls, and with 0 seconds prints the same number for all outputs together, in every build.
#include <chrono>

#include "support.h"

namespace fuzz {
namespace {

rh_thread_pool* pool = nullptr;
rh_scratch* scratch = nullptr;
uint64_t recorded = 0xcbf29ce484222325;  // FNV-1a

void Backwards(void*, int64_t total, int64_t, rh_range_body body, void* argument) {
  for (int64_t i = total; i-- > 0;) body(argument, i, i + 1);
}

}  // namespace

void Record(const void* outputs, int64_t bytes) {
  for (int64_t i = 0; i < bytes; ++i) {
    recorded = (recorded ^ static_cast<const unsigned char*>(outputs)[i]) * 0x100000001b3;
  }
}

RandomExecutor::RandomExecutor(Random* random) : is_null_(random->Chance(15)) {
  executor_.num_threads = random->OneOf({0, 1, 2, 3, 7});
  if (random->Chance(50)) executor_.scratch = scratch;
  if (random->Chance(30)) {
    executor_.parallel_for = Backwards;
  } else if (random->Chance(60)) {
    executor_.parallel_for = rh_thread_pool_for;
    executor_.context = pool;
  }
}

}  // namespace fuzz

int main(int argc, char** argv) {
  CHECK(argc == 4);
  const uint64_t seed = std::strtoull(argv[1], nullptr, 10);
  const uint64_t rounds = std::strtoull(argv[2], nullptr, 10);
  const double seconds = std::strtod(argv[3], nullptr);
  CHECK(rh_thread_pool_create(3, &fuzz::pool) == RH_OK);
  CHECK(rh_scratch_create(&fuzz::scratch) == RH_OK);
  using Subject = void (*)(fuzz::Random*);
  const Subject subjects[] = {fuzz::FuzzLookup,      fuzz::FuzzTraining, fuzz::FuzzRows,
                              fuzz::FuzzInteraction, fuzz::FuzzUnique,   fuzz::FuzzVocabulary};
  const auto begin = std::chrono::steady_clock::now();
  uint64_t round = 0;
  while (round < rounds || std::chrono::steady_clock::now() - begin < std::chrono::duration<double>(seconds)) {
    ++round;
    for (const Subject& subject : subjects) {
      const uint64_t case_seed = seed * 1'000'003 + round * 31 + static_cast<uint64_t>(&subject - subjects);
      std::fprintf(stderr, "\rround %llu", static_cast<unsigned long long>(round));
      fuzz::Random random(case_seed);
      subject(&random);
    }
  }
  std::fprintf(stderr, "\n");
  std::printf("%016llx\n", static_cast<unsigned long long>(fuzz::recorded));
  rh_scratch_destroy(fuzz::scratch);
  rh_thread_pool_destroy(fuzz::pool);
  return 0;
}
