# SPDX-License-Identifier: BSD-3-Clause
# Finds torch by asking the Python that builds, and defines meshfuse::torch (C++ only) and
# meshfuse::torch_python. find_package(Torch) is not used: it would need a CUDA toolkit.

if(MESHFUSE_PYTHON)
  set(python_parts Interpreter Development.Module)
else()
  set(python_parts Interpreter)
endif()
set(Python_FIND_VIRTUALENV FIRST)
find_package(Python 3.11 REQUIRED COMPONENTS ${python_parts})

execute_process(
  COMMAND "${Python_EXECUTABLE}" -c [[
import os
import torch
root = os.path.dirname(os.path.abspath(torch.__file__))
print(root, torch.__version__.split("+")[0], int(torch._C._GLIBCXX_USE_CXX11_ABI), sep=";", end="")
]]
  OUTPUT_VARIABLE torch_answer ERROR_VARIABLE torch_error RESULT_VARIABLE torch_status)
if(NOT torch_status EQUAL 0)
  message(FATAL_ERROR "${Python_EXECUTABLE} cannot import torch. Install the packages of "
    "requirements/build.txt for it, or choose another one with -DPython_EXECUTABLE=...\n"
    "${torch_error}")
endif()
list(GET torch_answer 0 torch_root)
list(GET torch_answer 1 MESHFUSE_TORCH_VERSION)
list(GET torch_answer 2 torch_abi)
set(MESHFUSE_TORCH_LIB_DIR "${torch_root}/lib")
message(STATUS "torch ${MESHFUSE_TORCH_VERSION} of ${Python_EXECUTABLE}")

foreach(name IN ITEMS c10 torch_cpu torch torch_python)
  add_library(meshfuse::lib_${name} SHARED IMPORTED)
  set_target_properties(meshfuse::lib_${name} PROPERTIES
    IMPORTED_LOCATION "${MESHFUSE_TORCH_LIB_DIR}/lib${name}.so")
endforeach()

add_library(meshfuse::torch INTERFACE IMPORTED)
target_include_directories(meshfuse::torch SYSTEM INTERFACE
  "${torch_root}/include" "${torch_root}/include/torch/csrc/api/include")
target_compile_definitions(meshfuse::torch INTERFACE _GLIBCXX_USE_CXX11_ABI=${torch_abi})
target_link_libraries(meshfuse::torch INTERFACE meshfuse::lib_torch_cpu meshfuse::lib_c10)

# For programs that no Python starts: libtorch.so brings torch's other devices, such as CUDA, and
# linkers would leave it out, since no symbol of it is used.
add_library(meshfuse::torch_devices INTERFACE IMPORTED)
target_link_options(meshfuse::torch_devices INTERFACE
  LINKER:--push-state,--no-as-needed,${MESHFUSE_TORCH_LIB_DIR}/libtorch.so,--pop-state)

# pybind11 comes from torch's own include folder: two versions in one translation unit do not mix.
add_library(meshfuse::torch_python INTERFACE IMPORTED)
target_link_libraries(meshfuse::torch_python INTERFACE
  meshfuse::torch meshfuse::lib_torch meshfuse::lib_torch_python)
