// The words of CUDA C for the dialect of the kernels. `real` and `R` are defined before it.
typedef unsigned char uchar;
typedef unsigned int uint;
typedef unsigned long long ulong;
#define long long long
#define INFINITY __int_as_float(0x7f800000)
#define KERNEL extern "C" __global__ void
// A structure is read where it lies: an index that isn't a constant would have each item copy it.
#define FIXED const __grid_constant__
#define FUNCTION static __device__ __forceinline__
#define GLOBAL
#define SHARED __shared__
#define LOCAL
#define ITEM (threadIdx.x)
#define GROUP (blockIdx.x)
#define INDEX (blockIdx.x * ITEMS + threadIdx.x)
#define BARRIER __syncthreads()
