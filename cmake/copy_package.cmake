# SPDX-License-Identifier: BSD-3-Clause
# cmake -DFROM=python -DTO=build/asan/python -P copy_package.cmake: the Python files of the package,
# without what another build put there.
file(COPY "${FROM}/meshfuse" "${FROM}/meshfuse_command" DESTINATION "${TO}"
  PATTERN "*.so*" EXCLUDE PATTERN "__pycache__" EXCLUDE)
