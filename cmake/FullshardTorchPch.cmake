# One precompiled torch header for every torch room and test: a file then compiles in about 5 s, not 30.
add_library(fullshard_torch_pch STATIC ${CMAKE_SOURCE_DIR}/cmake/torch_pch.cpp)
target_link_libraries(fullshard_torch_pch PUBLIC LibTorch::torch fmt::fmt-header-only Threads::Threads)
target_precompile_headers(fullshard_torch_pch PUBLIC
  <torch/torch.h> <fmt/format.h> <memory> <string> <vector> <functional> <optional> <span>)

function(fullshard_use_torch_pch target)
  # The header is compiled as -fPIC, and a program compiled as -fPIE could not use it.
  get_target_property(type ${target} TYPE)
  if(type STREQUAL "EXECUTABLE")
    set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
    target_compile_options(${target} PRIVATE -fPIC)
  endif()
  target_precompile_headers(${target} REUSE_FROM fullshard_torch_pch)
endfunction()
