// The words of OpenCL C for the dialect of the kernels. `real` and `R` are defined before it.
#pragma OPENCL FP_CONTRACT OFF
#define KERNEL kernel void
#define FIXED const
#define FUNCTION
#define GLOBAL global
#define SHARED local
#define LOCAL local
#define ITEM ((uint)get_local_id(0))
#define GROUP ((uint)get_group_id(0))
#define INDEX ((uint)get_global_id(0))
#define BARRIER barrier(CLK_LOCAL_MEM_FENCE)
