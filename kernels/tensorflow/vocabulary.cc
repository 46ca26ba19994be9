// Vocabularies as TensorFlow resources. Lookups share one's lock; what changes it holds the lock alone.
#include <memory>

#include "tensorflow/bridge.h"
#include "tensorflow/core/framework/resource_mgr.h"

namespace rankhouse {
namespace {

namespace tf = tensorflow;

class VocabularyResource : public tf::ResourceBase {
 public:
  explicit VocabularyResource(rh_vocabulary* vocabulary) : vocabulary_(vocabulary) {}
  ~VocabularyResource() override { rh_vocabulary_destroy(vocabulary_); }

  rh_vocabulary* get() const { return vocabulary_; }
  tf::mutex* mu() { return &mutex_; }
  std::string DebugString() const override { return "rankhouse vocabulary"; }

 private:
  rh_vocabulary* const vocabulary_;
  tf::mutex mutex_;
};

using VocabularyPointer = tf::core::RefCountPtr<VocabularyResource>;

tf::Status FindVocabulary(tf::OpKernelContext* context, VocabularyPointer* vocabulary) {
  return tf::LookupResource(context, tf::HandleFromInput(context, 0), vocabulary);
}

tf::Status CheckVectors(tf::OpKernelContext* context, int begin, int end) {
  for (int i = begin; i < end; ++i) {
    const tf::TensorShape& shape = context->input(i).shape();
    if (shape.dims() != 1 || shape != context->input(begin).shape()) {
      return tf::errors::InvalidArgument("inputs of shapes ", context->input(begin).shape().DebugString(), " and ",
                                         shape.DebugString(), ": expected [N] of all");
    }
  }
  return tf::OkStatus();
}

tf::Status Scalar(tf::OpKernelContext* context, int input, int64_t* value) {
  const tf::Tensor& tensor = context->input(input);
  if (tensor.NumElements() != 1) {
    return tf::errors::InvalidArgument("input ", input, " of shape ", tensor.shape().DebugString(),
                                       ": expected a scalar");
  }
  *value = tensor.flat<int64_t>()(0);
  return tf::OkStatus();
}

const int64_t* Data(const tf::Tensor& tensor) { return tensor.flat<int64_t>().data(); }

// Outputs 0 and 1 from what went.
tf::Status OutputEvicted(tf::OpKernelContext* context, const rh_evicted* evicted, int64_t num_evicted) {
  tf::Tensor* keys = nullptr;
  tf::Tensor* ids = nullptr;
  TF_RETURN_IF_ERROR(context->allocate_output(0, tf::TensorShape({num_evicted}), &keys));
  TF_RETURN_IF_ERROR(context->allocate_output(1, tf::TensorShape({num_evicted}), &ids));
  for (int64_t n = 0; n < num_evicted; ++n) {
    keys->flat<int64_t>()(n) = evicted[n].key;
    ids->flat<int64_t>()(n) = evicted[n].id;
  }
  return tf::OkStatus();
}

class VocabularyOp : public tf::OpKernel {
 public:
  explicit VocabularyOp(tf::OpKernelConstruction* construction) : OpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("first_id", &options_.first_id));
    OP_REQUIRES_OK(construction, construction->GetAttr("max_keys", &options_.max_keys));
    OP_REQUIRES_OK(construction, construction->GetAttr("unknown_id", &options_.unknown_id));
    OP_REQUIRES_OK(construction, construction->GetAttr("min_count", &options_.min_count));
    OP_REQUIRES_OK(construction, construction->GetAttr("max_candidates", &options_.max_candidates));
    OP_REQUIRES_OK(construction, construction->GetAttr("eviction", &options_.eviction));
  }

  void Compute(tf::OpKernelContext* context) override {
    tf::Tensor handle;
    tf::AllocatorAttributes on_host;
    on_host.set_on_host(true);
    OP_REQUIRES_OK(context, context->allocate_temp(tf::DT_RESOURCE, tf::TensorShape({}), &handle, on_host));
    rh_vocabulary* vocabulary = nullptr;
    OP_REQUIRES_OK(context, ToStatus(rh_vocabulary_create(&options_, &vocabulary)));
    // The handle counts references: the vocabulary goes when the last one goes.
    auto* resource = new VocabularyResource(vocabulary);
    handle.scalar<tf::ResourceHandle>()() =
        tf::ResourceHandle::MakeRefCountingHandle(resource, context->device()->name());
    context->set_output(0, handle);
  }

 private:
  rh_vocabulary_options options_ = {};
};

class LookupOp : public tf::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(tf::OpKernelContext* context) override {
    VocabularyPointer vocabulary;
    OP_REQUIRES_OK(context, FindVocabulary(context, &vocabulary));
    const tf::Tensor& keys = context->input(1);
    tf::Tensor* ids = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, keys.shape(), &ids));
    const Executor executor(context);
    tf::tf_shared_lock lock(*vocabulary->mu());
    OP_REQUIRES_OK(context, ToStatus(rh_vocabulary_lookup(vocabulary->get(), Data(keys), keys.NumElements(),
                                                          ids->flat<int64_t>().data(), executor.get())));
  }
};

class ObserveOp : public tf::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(tf::OpKernelContext* context) override {
    VocabularyPointer vocabulary;
    OP_REQUIRES_OK(context, FindVocabulary(context, &vocabulary));
    int64_t step = 0;
    OP_REQUIRES_OK(context, Scalar(context, 1, &step));
    OP_REQUIRES_OK(context, CheckVectors(context, 2, context->num_inputs()));
    const tf::Tensor& keys = context->input(2);
    const int64_t* counts = context->num_inputs() > 3 ? Data(context->input(3)) : nullptr;
    // Pages of it that nothing went into are never touched.
    const std::unique_ptr<rh_evicted[]> evicted(new (std::nothrow) rh_evicted[keys.NumElements()]);
    OP_REQUIRES(context, evicted != nullptr, tf::errors::ResourceExhausted("out of memory"));
    int64_t num_evicted = 0;
    {
      tf::mutex_lock lock(*vocabulary->mu());
      OP_REQUIRES_OK(context, ToStatus(rh_vocabulary_observe(vocabulary->get(), Data(keys), counts, keys.NumElements(),
                                                             step, evicted.get(), &num_evicted)));
    }
    OP_REQUIRES_OK(context, OutputEvicted(context, evicted.get(), num_evicted));
  }
};

class EvictOp : public tf::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(tf::OpKernelContext* context) override {
    VocabularyPointer vocabulary;
    OP_REQUIRES_OK(context, FindVocabulary(context, &vocabulary));
    int64_t min_step = 0;
    int64_t min_count = 0;
    OP_REQUIRES_OK(context, Scalar(context, 1, &min_step));
    OP_REQUIRES_OK(context, Scalar(context, 2, &min_count));
    tf::mutex_lock lock(*vocabulary->mu());
    const std::unique_ptr<rh_evicted[]> evicted(new (std::nothrow) rh_evicted[rh_vocabulary_size(vocabulary->get())]);
    OP_REQUIRES(context, evicted != nullptr, tf::errors::ResourceExhausted("out of memory"));
    int64_t num_evicted = 0;
    OP_REQUIRES_OK(context,
                   ToStatus(rh_vocabulary_evict(vocabulary->get(), min_step, min_count, evicted.get(), &num_evicted)));
    OP_REQUIRES_OK(context, OutputEvicted(context, evicted.get(), num_evicted));
  }
};

class SizeOp : public tf::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(tf::OpKernelContext* context) override {
    VocabularyPointer vocabulary;
    OP_REQUIRES_OK(context, FindVocabulary(context, &vocabulary));
    tf::Tensor* size = nullptr;
    tf::Tensor* num_entries = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, tf::TensorShape({}), &size));
    OP_REQUIRES_OK(context, context->allocate_output(1, tf::TensorShape({}), &num_entries));
    tf::tf_shared_lock lock(*vocabulary->mu());
    size->scalar<int64_t>()() = rh_vocabulary_size(vocabulary->get());
    num_entries->scalar<int64_t>()() = rh_vocabulary_num_entries(vocabulary->get());
  }
};

class ExportOp : public tf::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(tf::OpKernelContext* context) override {
    VocabularyPointer vocabulary;
    OP_REQUIRES_OK(context, FindVocabulary(context, &vocabulary));
    tf::tf_shared_lock lock(*vocabulary->mu());
    int64_t* columns[4];
    for (int i = 0; i < 4; ++i) {
      tf::Tensor* output = nullptr;
      const tf::TensorShape shape({rh_vocabulary_num_entries(vocabulary->get())});
      OP_REQUIRES_OK(context, context->allocate_output(i, shape, &output));
      columns[i] = output->flat<int64_t>().data();
    }
    OP_REQUIRES_OK(context,
                   ToStatus(rh_vocabulary_export(vocabulary->get(), columns[0], columns[1], columns[2], columns[3])));
  }
};

class ImportOp : public tf::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(tf::OpKernelContext* context) override {
    VocabularyPointer vocabulary;
    OP_REQUIRES_OK(context, FindVocabulary(context, &vocabulary));
    OP_REQUIRES_OK(context, CheckVectors(context, 1, 5));
    tf::mutex_lock lock(*vocabulary->mu());
    OP_REQUIRES_OK(context, ToStatus(rh_vocabulary_import(vocabulary->get(), Data(context->input(1)),
                                                          Data(context->input(2)), Data(context->input(3)),
                                                          Data(context->input(4)), context->input(1).NumElements())));
  }
};

REGISTER_KERNEL_BUILDER(Name("RankhouseVocabulary").Device(tf::DEVICE_CPU), VocabularyOp);
REGISTER_KERNEL_BUILDER(Name("RankhouseVocabularyLookup").Device(tf::DEVICE_CPU), LookupOp);
REGISTER_KERNEL_BUILDER(Name("RankhouseVocabularyObserve").Device(tf::DEVICE_CPU), ObserveOp);
REGISTER_KERNEL_BUILDER(Name("RankhouseVocabularyEvict").Device(tf::DEVICE_CPU), EvictOp);
REGISTER_KERNEL_BUILDER(Name("RankhouseVocabularySize").Device(tf::DEVICE_CPU), SizeOp);
REGISTER_KERNEL_BUILDER(Name("RankhouseVocabularyExport").Device(tf::DEVICE_CPU), ExportOp);
REGISTER_KERNEL_BUILDER(Name("RankhouseVocabularyImport").Device(tf::DEVICE_CPU), ImportOp);

}  // namespace
}  // namespace rankhouse
