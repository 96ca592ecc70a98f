# SPDX-License-Identifier: BSD-3-Clause
# find_package(meshfuse) gives meshfuse::meshfuse. Torch is that of -DPython_EXECUTABLE, which must
# be the version that meshfuse was built with.
include("${CMAKE_CURRENT_LIST_DIR}/torch.cmake")
include("${CMAKE_CURRENT_LIST_DIR}/meshfuseTargets.cmake")
