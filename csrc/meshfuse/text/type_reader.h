// SPDX-License-Identifier: BSD-3-Clause
// Types of tensors: `f32[i0{4}, i1{8}] { i2{2}@x, i3{4} = split i1 outer 2 } mesh(x=2)`.
#pragma once
#include <meshfuse/ir/fusion.h>
#include <meshfuse/text/scalar_reader.h>

#include <optional>
#include <string>
#include <vector>

namespace meshfuse {

/// Mention of an axis: `i3`.
struct AxisRef {
  Token at;
  char letter = 'i';
  int32_t number = 0;
};
/// Introduction of an axis: `i3{8}rf@x`, `i3{8}@stream swizzle x`.
struct AxisText {
  AxisRef ref;
  Scalar extent, expanded;
  bool rfactor = false;
  ParallelType parallel = ParallelType::Serial;
  ParallelType swizzle = ParallelType::Serial;
};
/// One item in braces.
struct ItemText {
  enum Kind : uint8_t { Split, Merge, Logical, Loop, Alloc } kind = Split;
  Token at;
  std::vector<AxisText> out;  // of a transform
  std::vector<AxisRef> axes;  // operands of a transform; the list of the others
  bool inner = false;         // Split
  Scalar factor;              // Split
  bool as_loop = false;       // Alloc
  bool has_flags = false;     // Alloc
  std::vector<Token> flags;   // Alloc
};
struct TypeText {
  Token at;
  DataType dtype = DataType::Float;
  bool is_tensor = false;  // has brackets
  std::vector<AxisText> root;
  bool cpu = false;
  std::vector<ItemText> items;
  std::optional<DeviceMesh> mesh;
};

/// Reads the part of a type after its data type.
void readTypeRest(TokenReader& in, ScalarReader& scalars, TypeText& type);
/// Reads a whole type.
TypeText readType(TokenReader& in, ScalarReader& scalars);

}  // namespace meshfuse
