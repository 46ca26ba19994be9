#include "engine/arena.h"

#include <utility>

namespace rankhouse::engine {
namespace {

thread_local std::unique_ptr<Arena> idle_arena;

}  // namespace

void Arena::Begin() {
  rh_executor executor = {};
  executor.scratch = &own_;
  taken_.emplace(&executor);
}

ThreadArena::ThreadArena() : arena_(std::move(idle_arena)) {
  if (arena_ == nullptr) arena_ = std::make_unique<Arena>();
  arena_->Begin();
}

ThreadArena::~ThreadArena() {
  arena_->End();
  idle_arena = std::move(arena_);
}

}  // namespace rankhouse::engine
