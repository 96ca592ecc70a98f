# SPDX-License-Identifier: BSD-3-Clause
# install() rules: the wheel takes everything; a plain `cmake --install` only the C++ library.

include(CMakePackageConfigHelpers)

install(TARGETS meshfuse EXPORT meshfuseTargets LIBRARY DESTINATION ${MESHFUSE_LIB_DIR})
if(TARGET meshfuse_mpi)
  install(TARGETS meshfuse_mpi LIBRARY DESTINATION ${MESHFUSE_LIB_DIR})
endif()
if(TARGET meshfuse_python AND SKBUILD)
  install(TARGETS meshfuse_python LIBRARY DESTINATION ${MESHFUSE_LIB_DIR})
endif()

install(DIRECTORY "${PROJECT_SOURCE_DIR}/csrc/meshfuse" DESTINATION ${MESHFUSE_INCLUDE_DIR}
  FILES_MATCHING PATTERN "*.h")
install(EXPORT meshfuseTargets NAMESPACE meshfuse:: DESTINATION ${MESHFUSE_CMAKE_DIR})
write_basic_package_version_file(
  "${PROJECT_BINARY_DIR}/meshfuseConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
string(REGEX MATCH "^[0-9]+\\.[0-9]+" MESHFUSE_TORCH_MINOR "${MESHFUSE_TORCH_VERSION}")
configure_file("${PROJECT_SOURCE_DIR}/cmake/meshfuseConfig.cmake.in"
  "${PROJECT_BINARY_DIR}/meshfuseConfig.cmake" @ONLY)
install(FILES
  "${PROJECT_BINARY_DIR}/meshfuseConfig.cmake" "${PROJECT_SOURCE_DIR}/cmake/torch.cmake"
  "${PROJECT_BINARY_DIR}/meshfuseConfigVersion.cmake"
  DESTINATION ${MESHFUSE_CMAKE_DIR})
