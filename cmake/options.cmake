# SPDX-License-Identifier: BSD-3-Clause
# Options, the compile flags of our own code, and where built files go.

option(MESHFUSE_PYTHON "Build the Python extension" ON)
option(MESHFUSE_MPI "Build the MPI plugin when an MPI is found" ON)
option(MESHFUSE_PCH "Precompile the ATen headers" ON)
option(MESHFUSE_WERROR "Treat warnings as errors" ON)
option(MESHFUSE_IN_TREE "Put built files into python/meshfuse, ready for PYTHONPATH=python"
  ${PROJECT_IS_TOP_LEVEL})
option(MESHFUSE_COPY_PACKAGE "Make the package in the build folder, ready for PYTHONPATH=.../python" OFF)
option(MESHFUSE_COVERAGE "Count the lines and branches that run (gcc)" OFF)
option(MESHFUSE_FUZZ "Build the fuzzers in place of the tests (clang)" OFF)
set(MESHFUSE_SANITIZE "" CACHE STRING "Sanitizers, as for -fsanitize= (e.g. address,undefined)")

set(MESHFUSE_OBJECTS "" CACHE PATH
  "Build folder of these sources whose object files are linked, in place of compiling them again")
if(MESHFUSE_OBJECTS)
  set(MESHFUSE_PCH OFF)
endif()

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_CXX_SCAN_FOR_MODULES OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -g1")  # line tables only: full debug info doubles the link
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "Kind of build" FORCE)
endif()

if(CMAKE_CXX_CLANG_TIDY)
  execute_process(COMMAND ${CMAKE_CXX_CLANG_TIDY} --version OUTPUT_VARIABLE tidy_version)
  if(NOT tidy_version MATCHES "version ([0-9]+)" OR CMAKE_MATCH_1 LESS 17)
    message(FATAL_ERROR "clang-tidy 17 or newer is needed, see requirements/lint.txt")
  endif()
endif()

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # The sloppiness lets ccache serve files that use a precompiled header.
  set(CMAKE_CXX_COMPILER_LAUNCHER "${CMAKE_COMMAND}" -E env
    CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime "${CCACHE_PROGRAM}")
endif()

add_library(meshfuse_options INTERFACE)
target_compile_options(meshfuse_options INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wconversion $<$<BOOL:${MESHFUSE_WERROR}>:-Werror>)
if(CCACHE_PROGRAM AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  target_compile_options(meshfuse_options INTERFACE -fpch-preprocess)
endif()
if(MESHFUSE_SANITIZE)
  target_compile_options(meshfuse_options INTERFACE
    -fsanitize=${MESHFUSE_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_compile_definitions(meshfuse_options INTERFACE _GLIBCXX_ASSERTIONS)
  target_link_options(meshfuse_options INTERFACE -fsanitize=${MESHFUSE_SANITIZE})
endif()
if(MESHFUSE_COVERAGE)  # ranks and threads count into the same files
  target_compile_options(meshfuse_options INTERFACE --coverage -fprofile-update=atomic)
  target_link_options(meshfuse_options INTERFACE --coverage)
endif()

if(SKBUILD)  # a wheel: everything inside the package
  set(MESHFUSE_LIB_DIR meshfuse)
  set(MESHFUSE_INCLUDE_DIR meshfuse/include)
  set(MESHFUSE_CMAKE_DIR meshfuse/cmake)
else()
  set(MESHFUSE_LIB_DIR ${CMAKE_INSTALL_LIBDIR})
  set(MESHFUSE_INCLUDE_DIR ${CMAKE_INSTALL_INCLUDEDIR})
  set(MESHFUSE_CMAKE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/meshfuse)
endif()

# Replaces the sources in a list by the object files that MESHFUSE_OBJECTS has of them.
function(meshfuse_take_objects list target)
  list(TRANSFORM ${list} REPLACE "^${PROJECT_SOURCE_DIR}/(.*)$"
    "${MESHFUSE_OBJECTS}/CMakeFiles/${target}.dir/\\1.o")
  set(${list} "${${list}}" PARENT_SCOPE)
endfunction()

# Output folder and run paths of a library. The libraries find one another in their own folder,
# torch in its own lib folder (as a neighbour package first, when installed), and the folders given.
# One run path serves the build and the installed tree: nothing is rewritten by install. A wheel
# does not name the torch of the machine that built it: importing torch has loaded it before.
function(meshfuse_place target)
  if(MESHFUSE_IN_TREE)
    set(out "${PROJECT_SOURCE_DIR}/python/meshfuse")
  elseif(MESHFUSE_COPY_PACKAGE)
    set(out "${PROJECT_BINARY_DIR}/python/meshfuse")
  else()
    set(out "${PROJECT_BINARY_DIR}/lib")
  endif()
  set(torch "$ORIGIN/../torch/lib")
  if(NOT SKBUILD)
    list(APPEND torch "${MESHFUSE_TORCH_LIB_DIR}")
  endif()
  set_target_properties(${target} PROPERTIES
    LIBRARY_OUTPUT_DIRECTORY "${out}"
    BUILD_WITH_INSTALL_RPATH ON
    INSTALL_RPATH "$ORIGIN;${torch};${ARGN}")
endfunction()

# Metadata beside the package makes its pytest plugin known without an installation.
if(MESHFUSE_IN_TREE OR MESHFUSE_COPY_PACKAGE)
  set(parent "${PROJECT_BINARY_DIR}/python")
  if(MESHFUSE_IN_TREE)
    set(parent "${PROJECT_SOURCE_DIR}/python")
  endif()
  set(info "${parent}/meshfuse-${PROJECT_VERSION}.dist-info")
  file(CONFIGURE OUTPUT "${info}/METADATA" @ONLY CONTENT
    "Metadata-Version: 2.1\nName: meshfuse\nVersion: @PROJECT_VERSION@\n")
  file(CONFIGURE OUTPUT "${info}/entry_points.txt" @ONLY CONTENT
    "[pytest11]\nmeshfuse = meshfuse.testing\n")
endif()
