# Finds the CPU core of libtorch inside an unpacked torch wheel and defines LibTorch::torch.
# find_package(Torch) is not used: the wheel's own config asks for a CUDA toolkit, which no CPU build needs.
# Input: LibTorch_ROOT, the folder that holds torch/ and nvidia/ (default: <source>/.deps).
set(LibTorch_ROOT "${CMAKE_SOURCE_DIR}/.deps" CACHE PATH "Folder into which the torch wheel was unpacked")
find_path(LibTorch_INCLUDE_DIR torch/csrc/api/include/torch/torch.h
  PATHS ${LibTorch_ROOT}/torch/include NO_DEFAULT_PATH)
find_library(LibTorch_CPU_LIBRARY torch_cpu PATHS ${LibTorch_ROOT}/torch/lib NO_DEFAULT_PATH)
find_library(LibTorch_C10_LIBRARY c10 PATHS ${LibTorch_ROOT}/torch/lib NO_DEFAULT_PATH)
if(LibTorch_INCLUDE_DIR)
  file(STRINGS ${LibTorch_INCLUDE_DIR}/torch/headeronly/version.h LibTorch_VERSION REGEX "^  \"[0-9.]+\"")
  string(REGEX MATCH "[0-9.]+" LibTorch_VERSION "${LibTorch_VERSION}")
endif()
# For the GPU plugin only; FindCudaForTorch.cmake makes targets of them.
find_library(LibTorch_CUDA_LIBRARY torch_cuda PATHS ${LibTorch_ROOT}/torch/lib NO_DEFAULT_PATH)
find_library(LibTorch_C10_CUDA_LIBRARY c10_cuda PATHS ${LibTorch_ROOT}/torch/lib NO_DEFAULT_PATH)
mark_as_advanced(LibTorch_CUDA_LIBRARY LibTorch_C10_CUDA_LIBRARY)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(LibTorch
  REQUIRED_VARS LibTorch_CPU_LIBRARY LibTorch_C10_LIBRARY LibTorch_INCLUDE_DIR
  VERSION_VAR LibTorch_VERSION
  REASON_FAILURE_MESSAGE "run setup/install first, or point LibTorch_ROOT at an unpacked torch wheel")
if(LibTorch_FOUND AND NOT TARGET LibTorch::torch)
  add_library(LibTorch::c10 SHARED IMPORTED)
  set_target_properties(LibTorch::c10 PROPERTIES IMPORTED_LOCATION ${LibTorch_C10_LIBRARY})
  add_library(LibTorch::torch_cpu SHARED IMPORTED)
  set_target_properties(LibTorch::torch_cpu PROPERTIES IMPORTED_LOCATION ${LibTorch_CPU_LIBRARY})
  add_library(LibTorch::torch INTERFACE IMPORTED)
  set_target_properties(LibTorch::torch PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES
      "${LibTorch_INCLUDE_DIR};${LibTorch_INCLUDE_DIR}/torch/csrc/api/include"
    INTERFACE_LINK_LIBRARIES "LibTorch::torch_cpu;LibTorch::c10"
    # torch_cpu must stay linked although nothing may refer to it directly: it registers the operators.
    # Its CUDA-only undefined symbols are never called in a CPU process.
    INTERFACE_LINK_OPTIONS "-Wl,--no-as-needed;-Wl,--allow-shlib-undefined")
endif()
