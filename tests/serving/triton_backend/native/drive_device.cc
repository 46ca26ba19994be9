#include "drive_device.h"

#include <dlfcn.h>

#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <random>
#include <thread>

#include "loaded_model.h"
#include "rankhouse/kernels.h"
#include "tests/kernels/cuda_emulation/failing_calls.h"

namespace {

using Random = std::mt19937_64;

constexpr InstancePlace kOnGpu = {TRITONSERVER_INSTANCEGROUPKIND_GPU, 0};
constexpr int64_t kSmallCache = 4700;  // one set for each of the three sizes of rows, less than all versions have

int64_t Below(Random* random, int64_t bound) { return static_cast<int64_t>((*random)() % bound); }

// A backend, initialized, with these options.
class Backend {
 public:
  explicit Backend(const std::string& options) : backend_{{"{\"cmdline\": {" + options + "}}"}} {
    Expect(TRITONBACKEND_Initialize(&backend_));
  }
  ~Backend() { Expect(TRITONBACKEND_Finalize(&backend_)); }

  TRITONBACKEND_Backend* get() { return &backend_; }

 private:
  TRITONBACKEND_Backend backend_;
};

std::string OnDevice(int64_t cache_bytes) {
  return "\"num_threads\": \"1\", \"device\": \"0\", \"device_cache_bytes\": \"" + std::to_string(cache_bytes) + "\"";
}

std::string Features(const Versions& versions, size_t number, int max_batch_size, const std::string& memory = "cpu") {
  return Config(
      {{"store", versions.store}, {"version", versions.names[number]}, {"step", "features"}, {"output_memory", memory}},
      max_batch_size);
}

// A version on both, in one engine.
struct Served {
  Served(TRITONBACKEND_Backend* backend, const Versions& versions, size_t number)
      : cpu(backend, Features(versions, number, 0)),
        gpu(backend, Features(versions, number, 0), kOnGpu),
        direct(backend, Features(versions, number, 0, "gpu"), kOnGpu),
        batched(backend, Features(versions, number, 64), kOnGpu) {}

  Model cpu, gpu, direct, batched;
};

// Up to four rows of values that are known or not.
TRITONBACKEND_Request RandomRequest(Random* random) {
  const std::vector<std::string> known = {"rome", "oslo", "a", "bb", "ccc", "dddd", "nowhere"};
  const int64_t numbers[] = {7, -3, int64_t{1} << 40, 5};
  const int64_t num_rows = Below(random, 5);
  std::vector<int32_t> int_lengths, text_lengths, sizes;
  std::vector<int64_t> ints;
  std::vector<char> texts;
  for (int64_t row = 0; row < num_rows; ++row) {
    for (const int64_t most : {1, 3}) int_lengths.push_back(static_cast<int32_t>(Below(random, most + 1)));
    for (const int64_t most : {1, 1, 3}) text_lengths.push_back(static_cast<int32_t>(Below(random, most + 1)));
    for (int i = int_lengths.end()[-2] + int_lengths.back(); i > 0; --i) ints.push_back(numbers[Below(random, 4)]);
    for (int i = text_lengths.end()[-3] + text_lengths.end()[-2] + text_lengths.back(); i > 0; --i) {
      const std::string& text = known[Below(random, static_cast<int64_t>(known.size()))];
      texts.insert(texts.end(), text.begin(), text.end());
      sizes.push_back(static_cast<int32_t>(text.size()));
    }
  }
  const auto size = [](const auto& elements) { return static_cast<int64_t>(elements.size()); };
  TRITONBACKEND_Request request;
  request.inputs["float_values"] =
      InputOf<double>(TRITONSERVER_TYPE_FP64, {num_rows, 2}, std::vector<double>(2 * num_rows, 1.5));
  request.inputs["int_values"] = InputOf(TRITONSERVER_TYPE_INT64, {size(ints)}, ints);
  request.inputs["int_lengths"] = InputOf(TRITONSERVER_TYPE_INT32, {num_rows, 2}, int_lengths);
  request.inputs["text_bytes"] = InputOf(TRITONSERVER_TYPE_UINT8, {size(texts)}, texts);
  request.inputs["text_sizes"] = InputOf(TRITONSERVER_TYPE_INT32, {size(sizes)}, sizes);
  request.inputs["text_lengths"] = InputOf(TRITONSERVER_TYPE_INT32, {num_rows, 3}, text_lengths);
  return request;
}

// The same request, with its tensors somewhere else.
TRITONBACKEND_Request Elsewhere(TRITONBACKEND_Request request, Random* random) {
  const OutputPlace places[] = {{true},
                                {false, TRITONSERVER_MEMORY_CPU},
                                {false, TRITONSERVER_MEMORY_CPU_PINNED},
                                {false, TRITONSERVER_MEMORY_GPU, 0},
                                {false, TRITONSERVER_MEMORY_GPU, 1}};
  request.output_place = places[Below(random, 5)];
  request.output_shift = Below(random, 2) == 0 ? 0 : Below(random, 8);
  for (auto& [name, input] : request.inputs) {
    if (Below(random, 4) == 0) input.place = TRITONSERVER_MEMORY_GPU;
  }
  return request;
}

// Whatever version, batch and memory: the bits are those of the CPU.
void AnswersAsTheCpu(std::vector<std::unique_ptr<Served>>* all, Random* random, int64_t count) {
  for (int64_t round = 0; round < count; ++round) {
    Served& served = *(*all)[Below(random, static_cast<int64_t>(all->size()))];
    Requests batch;
    std::vector<std::vector<float>> right;
    for (int64_t n = Below(random, 4); n >= 0; --n) {
      const TRITONBACKEND_Request request = RandomRequest(random);
      right.push_back(Embeddings(served.cpu.Execute(request)));
      Model& model = Below(random, 2) == 0 ? served.gpu : served.direct;
      Expect(Embeddings(model.Execute(Elsewhere(request, random))) == right.back(), "the CPU's bits");
      batch.push_back(Elsewhere(AsElement(request), random));
    }
    const auto wrong = Below(random, static_cast<int64_t>(2 * batch.size()));
    if (wrong < static_cast<int64_t>(batch.size())) batch[wrong].inputs.erase("int_values");
    served.batched.Execute(&batch);
    for (size_t i = 0; i < batch.size(); ++i) {
      if (static_cast<int64_t>(i) == wrong) {
        ExpectRefusal(batch[i], "no such input");
      } else {
        Expect(Embeddings(batch[i]) == right[i], "the CPU's bits in a batch");
      }
    }
  }
}

std::vector<std::unique_ptr<Served>> ServedOf(TRITONBACKEND_Backend* backend, const Versions& versions) {
  std::vector<std::unique_ptr<Served>> all;
  for (size_t number = 0; number < versions.names.size(); ++number) {
    all.push_back(std::make_unique<Served>(backend, versions, number));
  }
  return all;
}

void WaitFor(const std::string& what, const std::function<bool()>& condition) {
  for (int tries = 0; !condition(); ++tries) {
    Expect(tries < 400, what);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

// Triton is asked for the memory that the configuration names, and on the CPU for the CPU's.
void AsksForMemory(Served* served) {
  TRITONBACKEND_Request request = RawRequest();
  request.output_place.is_as_wanted = true;
  const auto wanted = [&](Model* model) { return model->Execute(request).outputs.at("embeddings").wanted; };
  Expect(wanted(&served->gpu) == TRITONSERVER_MEMORY_CPU_PINNED, "pinned memory is wanted");
  Expect(wanted(&served->direct) == TRITONSERVER_MEMORY_GPU, "memory of the GPU is wanted");
  Expect(wanted(&served->cpu) == TRITONSERVER_MEMORY_CPU, "memory of the CPU is wanted");
}

// Instances execute side by side, while versions come and go.
void ExecutesSideBySide(TRITONBACKEND_Backend* backend, const Versions& versions) {
  std::vector<std::thread> threads;
  for (uint64_t thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      Random random(thread);
      for (size_t round = 0; round < versions.names.size(); ++round) {
        const size_t number = (thread + round) % versions.names.size();
        Model cpu(backend, Features(versions, number, 0)), gpu(backend, Features(versions, number, 0), kOnGpu);
        for (int i = 0; i < 5; ++i) {
          const TRITONBACKEND_Request request = RandomRequest(&random);
          const std::vector<float> right = Embeddings(cpu.Execute(request));
          Expect(Embeddings(gpu.Execute(Elsewhere(request, &random))) == right, "the CPU's bits, side by side");
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Calls run() with each of CUDA's calls in it failing once; run() is told whether one did. Returns how many there were.
int64_t WithEachCallFailing(const std::function<void(const std::function<bool()>&)>& run) {
  for (int64_t calls = 0;; ++calls) {
    emulated_cuda_calls_left = calls;
    bool has_failed = false;
    run([&] { return has_failed = emulated_cuda_calls_left.exchange(-1) < 0; });
    if (!has_failed) return calls;
  }
}

// A call that fails is an error of its request, or of none; the next request has its answer.
void LookupsFailCleanly(Model* gpu, const std::function<void()>& stir, TRITONBACKEND_Request request) {
  const std::vector<float> right = Embeddings(gpu->Execute(request));
  int64_t num_refused = 0;
  const int64_t num_calls = WithEachCallFailing([&](const std::function<bool()>& has_failed) {
    const TRITONBACKEND_Request answered = gpu->Execute(request);
    Expect(has_failed() || !answered.has_failed, "no error without a call that fails");
    if (answered.has_failed) {
      ExpectRefusal(answered, "", TRITONSERVER_ERROR_INTERNAL);
      ++num_refused;
    } else {
      Expect(Embeddings(answered) == right, "an error or the answer");
    }
    stir();
    Expect(Embeddings(gpu->Execute(request)) == right, "the next request has its answer");
  });
  Expect(num_refused > 20 && num_refused > num_calls - 8, "nearly all calls are needed");
}

// The same of requests that are executed together; one call that fails need not be an error of any of them.
void BatchesFailCleanly(Model* batched, Random* random) {
  Requests batch;
  for (const int64_t device : {0, 1, 0}) {
    batch.push_back(AsElement(RawRequest()));
    batch.back().output_place = {false, TRITONSERVER_MEMORY_GPU, device};
  }
  const std::vector<float> right = Embeddings(batched->Execute(AsElement(RawRequest())));
  WithEachCallFailing([&](const std::function<bool()>& has_failed) {
    Requests given = batch;
    batched->Execute(&given);
    has_failed();
    for (const TRITONBACKEND_Request& request : given) {
      if (request.has_failed) {
        ExpectRefusal(request, "", TRITONSERVER_ERROR_INTERNAL);
      } else {
        Expect(Embeddings(request) == right, "an error or the answer");
      }
    }
    batched->Execute(Elsewhere(AsElement(RandomRequest(random)), random));
  });
}

// A call that fails where a backend begins, or a model is loaded, leaves nothing behind; the next try succeeds.
void OpeningsFailCleanly(const Versions& versions) {
  const int64_t of_backend = WithEachCallFailing([&](const std::function<bool()>& has_failed) {
    TRITONBACKEND_Backend backend{{"{\"cmdline\": {" + OnDevice(kSmallCache) + "}}"}};
    TRITONSERVER_Error* error = TRITONBACKEND_Initialize(&backend);
    Expect(has_failed() == (error != nullptr) && (error == nullptr) == (backend.state != nullptr), "an error or none");
    TRITONSERVER_ErrorDelete(error);
    if (error == nullptr) Expect(TRITONBACKEND_Finalize(&backend));
  });
  Expect(of_backend > 0, "the GPU is looked for at once");
  int64_t num_refused = 0;
  WithEachCallFailing([&](const std::function<bool()>& has_failed) {
    const int64_t calls = emulated_cuda_calls_left.exchange(-1);
    Backend backend(OnDevice(kSmallCache));
    emulated_cuda_calls_left = calls;
    const std::string why = WhyNotLoaded(backend.get(), Features(versions, 0, 0), kOnGpu);
    if (has_failed()) num_refused += !why.empty();
    Model gpu(backend.get(), Features(versions, 0, 0), kOnGpu), cpu(backend.get(), Features(versions, 0, 0));
    Expect(Embeddings(gpu.Execute(RawRequest())) == Embeddings(cpu.Execute(RawRequest())), "the next try succeeds");
  });
  Expect(num_refused > 10, "calls that fail are errors of the model");
}

// Counters that do not come once come later; what hinders them is logged once.
void MirrorsMetricsAfterFailures(const Versions& versions) {
  Backend backend(OnDevice(kSmallCache));
  Model gpu(backend.get(), Features(versions, 0, 0), kOnGpu);
  gpu.Execute(RawRequest());
  const auto num_lookups = [&] {
    return MetricSum("rankhouse_embedding_lookups_total", "version=\"" + versions.names[0] + "\"");
  };
  WaitFor("lookups are counted", [&] { return num_lookups() == 1; });
  const int num_logged = NumLogged("emulated failure");
  emulated_cuda_calls_left = 0;  // the next call is the mirror's, of the bytes in the GPU's cache
  WaitFor("what the engine cannot count is logged", [&] { return NumLogged("emulated failure") == num_logged + 1; });
  FailMetrics(2);
  Model second(backend.get(), Features(versions, 1, 0), kOnGpu);
  gpu.Execute(RawRequest());
  WaitFor("lookups are counted again", [&] { return num_lookups() == 2; });
  WaitFor("those of new versions, too", [&] {
    return MetricSum("rankhouse_embedding_version_age_seconds", "version=\"" + versions.names[1] + "\"") > 0;
  });
  Expect(NumLogged("no room for a metric") == 1, "what fails twice is logged once");
}

void ExpectNotLoaded(Backend* backend, const std::string& config, InstancePlace place, const std::string& text) {
  const std::string why = WhyNotLoaded(backend->get(), config, place);
  Expect(why.find(text) != std::string::npos, "not loaded by '" + text + "': '" + why + "'");
}

void RefusesPlaces(const Versions& versions, const std::string& onnxruntime) {
  Backend without("");
  ExpectNotLoaded(
      &without, Features(versions, 0, 0), kOnGpu,
      "on GPU 0 (KIND_GPU), but the engine has no GPU: start Triton with --backend-config=rankhouse,device=0");
  ExpectNotLoaded(&without, Features(versions, 0, 0, "gpu"), {},
                  "output_memory is 'gpu', but the model's instances are");
  ExpectNotLoaded(&without, Features(versions, 0, 0, "there"), {}, "output_memory is 'there'; expected cpu or gpu");
  const std::string dense = Config(
      {{"store", versions.store}, {"version", versions.names[0]}, {"step", "dense"}, {"onnxruntime", onnxruntime}}, 0);
  ExpectNotLoaded(&without, dense, kOnGpu, "the step dense runs on the CPU");
}

}  // namespace

void DriveDevice(const Versions& versions) {
  Random random(1);
  for (const int64_t cache_bytes : {int64_t{0}, kSmallCache, int64_t{1} << 20}) {
    Backend backend(OnDevice(cache_bytes));
    ExpectNotLoaded(&backend, Features(versions, 0, 0), {TRITONSERVER_INSTANCEGROUPKIND_GPU, 1},
                    "on GPU 1, but the engine's rows are on GPU 0: set gpus: [ 0 ]");
    std::vector<std::unique_ptr<Served>> all = ServedOf(backend.get(), versions);
    AsksForMemory(all[0].get());
    AnswersAsTheCpu(&all, &random, 40);
    if (cache_bytes != kSmallCache) continue;
    const auto stir = [&] {
      all[Below(&random, static_cast<int64_t>(all.size()))]->gpu.Execute(RandomRequest(&random));
    };
    LookupsFailCleanly(&all[0]->gpu, stir, RawRequest());
    BatchesFailCleanly(&all[1]->batched, &random);
    WaitFor("rows make way", [] { return MetricSum("rankhouse_embedding_evictions_total", "tier=\"device\"") > 0; });
    Expect(MetricSum("rankhouse_embedding_hits_total", "tier=\"device\"") > 0, "the GPU's cache has hits");
    all.clear();
    ExecutesSideBySide(backend.get(), versions);
  }
  OpeningsFailCleanly(versions);
  MirrorsMetricsAfterFailures(versions);
  const auto num_contexts = reinterpret_cast<int (*)()>(
      dlsym(dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD), "emulated_driver_num_contexts"));
  Expect(num_contexts() == 0, "contexts are given back");
  std::printf("all on the GPU as on the CPU\n");
}

void DriveWithoutDevice(const Versions& versions, const std::string& onnxruntime) {
  RefusesPlaces(versions, onnxruntime);
  if (rh_built_with_cuda() == 0) {
    TRITONBACKEND_Backend backend{{"{\"cmdline\": {" + OnDevice(0) + "}}"}};
    TRITONSERVER_Error* error = TRITONBACKEND_Initialize(&backend);
    Expect(error != nullptr && error->code == TRITONSERVER_ERROR_UNSUPPORTED &&
               error->message.find("'device' is 0, but this library was built without CUDA: leave") == 0,
           "a build without CUDA refuses the option");
    TRITONSERVER_ErrorDelete(error);
    return;
  }
  Backend backend(OnDevice(0));
  ExpectNotLoaded(&backend, Features(versions, 0, 0), kOnGpu, "this machine has no CUDA driver (libcuda.so.1)");
  Model cpu(backend.get(), Features(versions, 0, 0));
  TRITONBACKEND_Request request = RawRequest();
  request.inputs["float_values"].place = TRITONSERVER_MEMORY_GPU;
  ExpectRefusal(cpu.Execute(request),
                "lies in GPU memory, and this machine has no CUDA driver (libcuda.so.1); send it in",
                TRITONSERVER_ERROR_UNSUPPORTED);
}
