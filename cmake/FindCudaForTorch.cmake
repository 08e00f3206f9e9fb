# Finds the headers of CUDA and NCCL that libtorch's own CUDA headers include, and defines
# LibTorch::torch_cuda. Nothing of CUDA is compiled or linked: libtorch_cuda.so brings its libraries.
# Looked for as one whole, so that no two versions mix: in NVIDIA's wheels beside torch's, in the
# tests' environment (setup/test_python), whose wheels lack a few headers that setup/cuda fetches, and
# in a toolkit (CUDA_HOME, CUDA_PATH, /usr/local/cuda; nccl.h there or in /usr/include), which must be
# of the CUDA that the pinned torch was built with.
# Output: CudaForTorch_FOUND, CudaForTorch_INCLUDE_DIRS, CudaForTorch_LIBRARY_DIRS.
set(CudaForTorch_needed
  cuda_runtime_api.h crt/host_defines.h cusparse.h cublas_v2.h cublasLt.h cusolverDn.h nccl.h)

function(_cuda_for_torch_try libraries)
  foreach(header IN LISTS CudaForTorch_needed)
    set(found FALSE)
    foreach(folder IN LISTS ARGN)
      if(EXISTS ${folder}/${header})
        set(found TRUE)
      endif()
    endforeach()
    if(NOT found)
      return()
    endif()
  endforeach()
  foreach(folder IN LISTS ARGN)
    if(EXISTS ${folder}/cuda_runtime_api.h)
      file(STRINGS ${folder}/cuda_runtime_api.h version REGEX "define CUDART_VERSION +13[0-9]+")
    endif()
  endforeach()
  if(NOT version)
    return()
  endif()
  set(CudaForTorch_INCLUDE_DIRS ${ARGN} PARENT_SCOPE)
  set(CudaForTorch_LIBRARY_DIRS ${libraries} PARENT_SCOPE)
endfunction()

set(CudaForTorch_INCLUDE_DIRS "")
set(CudaForTorch_LIBRARY_DIRS "")
file(GLOB CudaForTorch_wheels LIST_DIRECTORIES true
  ${LibTorch_ROOT}/nvidia ${LibTorch_ROOT}/test-python/lib/python3*/site-packages/nvidia)
foreach(wheels IN LISTS CudaForTorch_wheels)
  if(NOT CudaForTorch_INCLUDE_DIRS)
    file(GLOB libraries LIST_DIRECTORIES true ${wheels}/*/lib)
    _cuda_for_torch_try("${libraries}" ${wheels}/cu13/include ${wheels}/nccl/include
      ${LibTorch_ROOT}/cuda/nvidia/cu13/include)
  endif()
endforeach()

foreach(toolkit IN ITEMS $ENV{CUDA_HOME} $ENV{CUDA_PATH} /usr/local/cuda)
  if(NOT CudaForTorch_INCLUDE_DIRS)
    _cuda_for_torch_try("${toolkit}/lib64" ${toolkit}/include /usr/include)
  endif()
endforeach()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(CudaForTorch
  REQUIRED_VARS CudaForTorch_INCLUDE_DIRS LibTorch_CUDA_LIBRARY LibTorch_C10_CUDA_LIBRARY
  REASON_FAILURE_MESSAGE "install the CUDA toolkit and NCCL, or run setup/cuda (without them there is no GPU plugin)")
if(CudaForTorch_FOUND AND NOT TARGET LibTorch::torch_cuda)
  add_library(LibTorch::c10_cuda SHARED IMPORTED)
  set_target_properties(LibTorch::c10_cuda PROPERTIES IMPORTED_LOCATION ${LibTorch_C10_CUDA_LIBRARY})
  add_library(LibTorch::torch_cuda SHARED IMPORTED)
  set_target_properties(LibTorch::torch_cuda PROPERTIES
    IMPORTED_LOCATION ${LibTorch_CUDA_LIBRARY}
    INTERFACE_INCLUDE_DIRECTORIES "${CudaForTorch_INCLUDE_DIRS}"
    INTERFACE_LINK_LIBRARIES "LibTorch::c10_cuda;LibTorch::torch")
endif()
