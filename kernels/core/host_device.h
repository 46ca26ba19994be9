// Marks what kernels call as well as the host.
#ifndef RANKHOUSE_CORE_HOST_DEVICE_H_
#define RANKHOUSE_CORE_HOST_DEVICE_H_

#if defined(__CUDACC__)
#define RH_HOST_DEVICE __host__ __device__
#else
#define RH_HOST_DEVICE
#endif

#endif  // RANKHOUSE_CORE_HOST_DEVICE_H_
