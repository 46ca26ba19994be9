// Work beside the lookups of others.
#ifndef RANKHOUSE_ENGINE_BACKGROUND_H_
#define RANKHOUSE_ENGINE_BACKGROUND_H_

#include <functional>

namespace rankhouse::engine {

// Does some work on a thread of its own, which the system gives a processor only where nothing of normal priority wants
// it, or a small share where all are busy; waits for it, and throws what it throws. A thread of its own, as a thread
// that has lowered its priority may not be allowed to raise it again.
void RunInBackground(const std::function<void()>& work);

}  // namespace rankhouse::engine

#endif  // RANKHOUSE_ENGINE_BACKGROUND_H_
