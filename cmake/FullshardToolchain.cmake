# Compiler-wide choices: warnings are errors, ccache and a fast linker when they are there.
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG -g1")

find_program(FULLSHARD_CCACHE ccache)
if(FULLSHARD_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # A precompiled header carries time stamps and macros that ccache distrusts unless told otherwise.
  set(CMAKE_CXX_COMPILER_LAUNCHER
      ${CMAKE_COMMAND} -E env
      CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
      ${FULLSHARD_CCACHE})
endif()

add_library(fullshard_flags INTERFACE)
target_compile_options(fullshard_flags INTERFACE -Wall -Wextra -Wconversion -Wshadow -Werror
  # g++ counts members that a designated initializer leaves to their default, and reads GoogleTest's
  # assertions as an if without braces.
  "$<$<CXX_COMPILER_ID:GNU>:-Wno-missing-field-initializers;-Wno-dangling-else>")
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  target_compile_options(fullshard_flags INTERFACE -Wthread-safety)
  add_compile_options(-Xclang -fno-pch-timestamp)
  add_link_options(-fuse-ld=lld)
endif()
if(FULLSHARD_SANITIZE)
  add_compile_options(-fsanitize=${FULLSHARD_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${FULLSHARD_SANITIZE})
endif()
