# SPDX-License-Identifier: BSD-3-Clause
# Run by `cmake -P`: fails when this cmake is too old.
cmake_minimum_required(VERSION 3.25)
