// Thrust's counting_iterator on the host; see cuda_runtime.h.
#ifndef RANKHOUSE_TESTS_CUDA_EMULATION_COUNTING_ITERATOR_H_
#define RANKHOUSE_TESTS_CUDA_EMULATION_COUNTING_ITERATOR_H_

namespace thrust {

template <typename T>
class counting_iterator {
 public:
  explicit counting_iterator(T first) : first_(first) {}
  T operator[](T n) const { return first_ + n; }

 private:
  T first_;
};

}  // namespace thrust

#endif  // RANKHOUSE_TESTS_CUDA_EMULATION_COUNTING_ITERATOR_H_
