// The backend under requests of every kind: right ones, wrong ones, and ones that change while they are read.
// Arguments: "backend" or "device", the library of ONNX Runtime, a store, and the names of its versions
// (tests/serving/small_version.py).
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <random>
#include <thread>

#include "drive_device.h"
#include "loaded_model.h"

#if defined(__SANITIZE_ADDRESS__)
// What ONNX Runtime keeps for good is not ours.
extern "C" const char* __lsan_default_suppressions() { return "leak:libonnxruntime.so"; }
#endif

namespace {

TRITONBACKEND_Request DenseRequest(int64_t num_rows) {
  TRITONBACKEND_Request request;
  for (const auto& [name, width] : {std::pair<const char*, int64_t>{"dense", 2}, {"embeddings", 16}}) {
    std::vector<float> elements(num_rows * width);
    for (size_t i = 0; i < elements.size(); ++i) elements[i] = std::sin(static_cast<float>(i));
    request.inputs[name] = InputOf<float>(TRITONSERVER_TYPE_FP32, {num_rows, width}, elements);
  }
  return request;
}

int32_t NumUnknown(const TRITONBACKEND_Request& answered) {
  Expect(!answered.has_failed, "an answer, and not: " + answered.error.message);
  return answered.Elements<int32_t>("unknown").at(0);
}

// Right requests, however their memory lies.
void Answers(Model* model) {
  const std::vector<float> right = Embeddings(model->Execute(RawRequest()));
  Expect(right.size() == 2 * 16, "16 columns");
  for (size_t shift = 1; shift < 8; ++shift) {
    TRITONBACKEND_Request request = RawRequest();
    for (auto& [name, input] : request.inputs) {
      const Piece whole = input.pieces[0];
      input.pieces[0] = PieceOf(whole.bytes.data(), whole.bytes.size(), shift);
    }
    request.output_shift = shift;
    Expect(Embeddings(model->Execute(std::move(request))) == right, "any alignment gives the same");
  }
  TRITONBACKEND_Request request = RawRequest();
  for (auto& [name, input] : request.inputs) {
    const std::vector<std::byte> whole = input.pieces[0].bytes;
    input.pieces = {PieceOf(whole.data(), 3), PieceOf(whole.data(), 0), PieceOf(whole.data() + 3, whole.size() - 3)};
  }
  Expect(Embeddings(model->Execute(std::move(request))) == right, "pieces are put together");
}

// Of a batch each request learns its own number of values that stand in no vocabulary.
void CountsUnknown(Model* model, Model* batched) {
  Expect(NumUnknown(model->Execute(RawRequest())) == 3, "5, cccc and paris are unknown");
  Requests batch;
  for (const int64_t value : {int64_t{7}, int64_t{1}, int64_t{-3}}) {
    TRITONBACKEND_Request& request = batch.emplace_back(AsElement(RawRequest()));
    std::fill_n(ElementsOf<int64_t>(&request, "int_values"), 4, value);
  }
  batched->Execute(&batch);
  Expect(NumUnknown(batch[0]) == 2 && NumUnknown(batch[1]) == 6 && NumUnknown(batch[2]) == 2, "each its own");
}

// What was checked is what is used, whatever a client does to memory that it shares with the server.
void IgnoresLaterChanges(Model* model) {
  const std::vector<float> right = Embeddings(model->Execute(RawRequest()));
  for (const char* name : {"int_lengths", "text_sizes", "text_lengths"}) {
    Requests one{RawRequest()};
    one[0].on_output = [&] { ElementsOf<int32_t>(&one[0], name)[0] = 1 << 20; };
    model->Execute(&one);
    Expect(Embeddings(one[0]) == right, std::string(name) + " was read once");
  }
#if !defined(__SANITIZE_THREAD__)  // It would find that the client writes while the server reads.
  for (const char* name : {"int_lengths", "text_sizes", "text_lengths"}) {
    Requests one{RawRequest()};
    volatile int32_t* length = ElementsOf<int32_t>(&one[0], name);
    std::atomic<bool> stop{false};
    std::thread client([&] {
      while (!stop) *length = *length == 1 << 20 ? 1 : 1 << 20;
    });
    for (int i = 0; i < 2000; ++i) {
      model->Execute(&one);
      one[0].num_responses = one[0].num_releases = 0;
      one[0].outputs.clear();
    }
    stop = true;
    client.join();
  }
#endif
}

struct Damage {
  std::function<void(TRITONBACKEND_Request*)> inflict;
  const char* message;
};

std::vector<Damage> Damages() {
  const auto reshape = [](const char* name, std::vector<int64_t> shape) {
    return [name, shape](TRITONBACKEND_Request* request) { request->inputs.at(name).shape = shape; };
  };
  const auto set = [](const char* name, int32_t value) {
    return [name, value](TRITONBACKEND_Request* request) { ElementsOf<int32_t>(request, name)[1] = value; };
  };
  return {
      {reshape("float_values", {-1, -4}), "float_values has the shape (-1, -4), which no memory"},
      {reshape("float_values", {int64_t{1} << 62, 4}), "which no memory can hold"},
      {reshape("float_values", {4}), "float_values has shape (4,); expected 2 dimensions"},
      {reshape("float_values", {}), "float_values has shape (); expected 2 dimensions"},
      {reshape("float_values", {3, 2}), "float_values has 32 bytes; expected 6 elements of 8"},
      {reshape("int_lengths", {4, 1}), "int_lengths has shape (4, 1); expected two dimensions and 2"},
      {reshape("text_lengths", {2, 3, 1}), "expected 2 dimensions"},
      {set("int_lengths", -2), "int_lengths add up to, 0, none of them negative"},
      {set("int_lengths", 0x7fffffff), "int_lengths add up to, 2147483649"},
      {set("int_lengths", 1), "int_lengths add up to, 3"},
      {set("text_sizes", -4), "text_sizes add up to"},
      {set("text_sizes", 5), "text_sizes add up to, 21"},
      {set("text_lengths", 2), "text_lengths add up to, 7"},
      {[](auto* request) { request->inputs.erase("int_values"); }, "no such input"},
      {[](auto* request) { request->inputs["int_values"].type = TRITONSERVER_TYPE_FP32; },
       "int_values has the type FP32"},
      {[](auto* request) { request->inputs["int_values"].pieces.clear(); },
       "int_values has pieces of 0 bytes; expected 32"},
      {[](auto* request) { request->inputs["int_values"].pieces[0].begin = 8; },
       "int_values has pieces of 24 bytes; expected 32"},
      {[](auto* request) {
         auto& pieces = request->inputs["int_values"].pieces;
         pieces.push_back(pieces[0]);
       },
       "int_values has pieces of more bytes than the 32"},
  };
}

// Alone and among right ones: each wrong request gets its own error, the others their answers.
void RefusesDamages(Model* model, Model* batched) {
  const std::vector<float> right = Embeddings(model->Execute(RawRequest()));
  for (const Damage& damage : Damages()) {
    TRITONBACKEND_Request request = RawRequest();
    damage.inflict(&request);
    ExpectRefusal(model->Execute(request), damage.message);
    Requests batch{AsElement(RawRequest()), AsElement(request), AsElement(RawRequest())};
    batched->Execute(&batch);
    Expect(Embeddings(batch[0]) == right && Embeddings(batch[2]) == right, "the others are answered");
    ExpectRefusal(batch[1], damage.message);
  }
  Requests batch{AsElement(RawRequest()), AsElement(RawRequest()), AsElement(RawRequest())};
  batch[1].is_cancelled = true;
  batch[2].gives_no_output = true;
  batched->Execute(&batch);
  Expect(Embeddings(batch[0]) == right, "the others are answered");
  ExpectRefusal(batch[1], "was cancelled", TRITONSERVER_ERROR_CANCELLED);
  ExpectRefusal(batch[2], "no memory for the output", TRITONSERVER_ERROR_INTERNAL);
  Requests none;
  batched->Execute(&none);
}

using Random = std::mt19937_64;

int64_t Below(Random* random, int64_t bound) { return static_cast<int64_t>((*random)() % bound); }

// Something else than it was: a shape, an element, the end of the memory.
void DamageSomething(TRITONBACKEND_Request* request, Random* random) {
  auto found = request->inputs.begin();
  std::advance(found, Below(random, static_cast<int64_t>(request->inputs.size())));
  TRITONBACKEND_Input& input = found->second;
  std::vector<std::byte>& bytes = input.pieces[0].bytes;
  constexpr int64_t kExtents[] = {-1, 0, 1, 2, 3, 4, 5, int64_t{1} << 31, int64_t{1} << 61};
  switch (Below(random, 4)) {
    case 0:
      for (int64_t& extent : input.shape) extent = kExtents[Below(random, 9)];
      break;
    case 1:
      bytes.resize(Below(random, static_cast<int64_t>(2 * bytes.size() + 1)));
      bytes.shrink_to_fit();
      input.num_bytes = bytes.size();
      break;
    case 2:
      if (!bytes.empty()) bytes[Below(random, static_cast<int64_t>(bytes.size()))] = std::byte((*random)());
      break;
    default:
      // Both say the same, so that it is looked at what they say.
      if (input.shape.back() > 0 && !bytes.empty()) {
        const size_t element = bytes.size() / input.shape.back();
        --input.shape.back();
        bytes.resize(bytes.size() - element);
        bytes.shrink_to_fit();
        input.num_bytes = bytes.size();
      }
  }
}

// How many requests were answered, and how many refused.
struct Count {
  int64_t answered = 0, refused = 0;
};

Count ExecuteDamaged(Model* model, const std::function<TRITONBACKEND_Request()>& right, Random* random, int64_t count) {
  Count found;
  for (int64_t i = 0; i < count; ++i) {
    Requests batch;
    for (int64_t n = 1 + Below(random, 4); n > 0; --n) {
      batch.push_back(AsElement(right()));
      for (int64_t damages = Below(random, 3); damages > 0; --damages) DamageSomething(&batch.back(), random);
    }
    model->Execute(&batch);
    for (const TRITONBACKEND_Request& request : batch) ++(request.has_failed ? found.refused : found.answered);
  }
  return found;
}

void AnswersDense(Model* model, Model* batched) {
  const auto scores = [](const TRITONBACKEND_Request& answered) {
    Expect(!answered.has_failed, "an answer, and not: " + answered.error.message);
    return answered.Elements<float>("scores");
  };
  Requests batch;
  for (const int64_t num_rows : {1, 0, 70, 3}) batch.push_back(AsElement(DenseRequest(num_rows)));
  batched->Execute(&batch);
  for (const TRITONBACKEND_Request& request : batch) {
    const int64_t num_rows = request.inputs.at("dense").shape[1];
    Expect(scores(request) == scores(model->Execute(DenseRequest(num_rows))), "a batch gives the same");
  }
  TRITONBACKEND_Request narrow = DenseRequest(4);
  narrow.inputs["embeddings"].shape = {8, 8};
  ExpectRefusal(model->Execute(narrow), "embeddings has shape (8, 8); expected (4, 16)");
}

void RefusesModels(TRITONBACKEND_Backend* backend, const std::string& config) {
  for (const std::string& wrong : {std::string("{"), std::string("{}"), std::string("[]"), config + "x"}) {
    TRITONBACKEND_Model model{backend, wrong};
    TRITONSERVER_Error* error = TRITONBACKEND_ModelInitialize(&model);
    Expect(error != nullptr && model.state == nullptr, "a wrong configuration is refused");
    TRITONSERVER_ErrorDelete(error);
  }
}

// Instances execute side by side, while versions come and go.
void ExecutesSideBySide(TRITONBACKEND_Backend* backend, const std::string& config, uint64_t seed, int64_t count) {
  std::vector<std::thread> threads;
  for (uint64_t number = 0; number < 4; ++number) {
    threads.emplace_back([=] {
      Random random(seed + number);
      for (int64_t round = 0; round < 4; ++round) {
        Model model(backend, config);
        ExecuteDamaged(&model, RawRequest, &random, count / 16);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// All but the lookups on a GPU.
void DriveBackend(const Versions& versions, const std::string& library, uint64_t seed, int64_t count) {
  TRITONBACKEND_Backend backend{{"{\"cmdline\": {\"num_threads\": \"1\"}}"}};
  Expect(TRITONBACKEND_Initialize(&backend));
  const auto config = [&](const std::string& step, int max_batch_size) {
    return Config({{"store", versions.store}, {"version", versions.names[0]}, {"step", step}, {"onnxruntime", library}},
                  max_batch_size);
  };
  {
    Model model(&backend, config("features", 0)), batched(&backend, config("features", 64));
    Answers(&model);
    CountsUnknown(&model, &batched);
    IgnoresLaterChanges(&model);
    RefusesDamages(&model, &batched);
    RefusesModels(&backend, config("features", 64));
    Random random(seed);
    const Count raw = ExecuteDamaged(&batched, RawRequest, &random, count);
    Model dense(&backend, config("dense", 0)), batched_dense(&backend, config("dense", 64));
    AnswersDense(&dense, &batched_dense);
    const Count joined = ExecuteDamaged(&batched_dense, [] { return DenseRequest(4); }, &random, count);
    std::printf("%ld %ld %ld %ld\n", raw.answered, raw.refused, joined.answered, joined.refused);
  }
  ExecutesSideBySide(&backend, config("features", 64), seed, count);
  for (int tries = 0; tries < 100 && NumMetricObjects() == 0; ++tries) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  Expect(NumMetricObjects() > 0, "the engine's counters are metrics");
  Expect(TRITONBACKEND_Finalize(&backend));
  Expect(NumMetricObjects() == 0, "metrics go with the backend");
}

}  // namespace

int main(int argc, char** argv) {
  Expect(argc >= 4, "what to drive, the library of ONNX Runtime, a store and the names of its versions");
  const std::string what = argv[1], library = argv[2];
  const Versions versions = {argv[3], {argv + 4, argv + argc}};
  if (what == "backend") {
    DriveBackend(versions, library, /*seed=*/1, /*count=*/2000);
    DriveWithoutDevice(versions, library);
  } else {
    DriveDevice(versions);
  }
  return 0;
}
