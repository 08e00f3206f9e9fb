# `cmake --install`: the executable, libfullshard.so, the public headers, and a package that
# find_package(fullshard) finds. libtorch is not copied: the package remembers the folder of the
# unpacked wheel, and a consumer may point LibTorch_ROOT elsewhere.
include(CMakePackageConfigHelpers)
set(FULLSHARD_PACKAGE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/fullshard)

# The executable opens libfullshard.so by name; these paths say where, in the build tree and installed.
set_target_properties(fullshard PROPERTIES
  BUILD_RPATH "\$ORIGIN/../lib"
  INSTALL_RPATH "\$ORIGIN/../${CMAKE_INSTALL_LIBDIR}")
install(TARGETS fullshard RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})

if(FULLSHARD_TORCH)
  set_target_properties(fullshard_engine PROPERTIES INSTALL_RPATH "${LibTorch_ROOT}/torch/lib")
  install(TARGETS fullshard_engine LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  if(TARGET fullshard_cuda)
    install(TARGETS fullshard_cuda LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  endif()
  install(DIRECTORY ${CMAKE_SOURCE_DIR}/include/fullshard DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
    FILES_MATCHING PATTERN "*.h")
  configure_package_config_file(${CMAKE_SOURCE_DIR}/cmake/fullshardConfig.cmake.in
    ${CMAKE_BINARY_DIR}/package/fullshardConfig.cmake
    INSTALL_DESTINATION ${FULLSHARD_PACKAGE_DIR}
    PATH_VARS CMAKE_INSTALL_INCLUDEDIR CMAKE_INSTALL_LIBDIR)
  write_basic_package_version_file(${CMAKE_BINARY_DIR}/package/fullshardConfigVersion.cmake
    COMPATIBILITY SameMinorVersion)
  install(FILES
    ${CMAKE_BINARY_DIR}/package/fullshardConfig.cmake
    ${CMAKE_BINARY_DIR}/package/fullshardConfigVersion.cmake
    ${CMAKE_SOURCE_DIR}/cmake/FindLibTorch.cmake
    DESTINATION ${FULLSHARD_PACKAGE_DIR})
endif()
