// Lookups of the backend on a GPU.
#ifndef RANKHOUSE_TESTS_TRITON_BACKEND_DRIVE_DEVICE_H_
#define RANKHOUSE_TESTS_TRITON_BACKEND_DRIVE_DEVICE_H_

#include <string>
#include <vector>

// Versions of a store.
struct Versions {
  std::string store;
  std::vector<std::string> names;
};

// In a build with CUDA, emulated, and with the emulated driver.
void DriveDevice(const Versions& versions);

// What is refused where there is no driver, and in a build without CUDA.
void DriveWithoutDevice(const Versions& versions, const std::string& onnxruntime);

#endif  // RANKHOUSE_TESTS_TRITON_BACKEND_DRIVE_DEVICE_H_
