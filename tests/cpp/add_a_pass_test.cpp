// SPDX-License-Identifier: BSD-3-Clause
// The pass of docs/add_a_pass.md, compiled from the page.
#include <gtest/gtest.h>
#include <meshfuse/passes/pass.h>
#include <meshfuse/text/ir_text.h>
#include <meshfuse/text/parser.h>

#include <string>

namespace meshfuse {
namespace {

/// Text of a program after the pass, and a check that running it again changes nothing.
std::string shared(const std::string& text) {
  const auto fusion = parseIr(text);
  runPass(*fusion, "share-equal");
  EXPECT_FALSE(runPass(*fusion, "share-equal"));
  return irText(*fusion);
}

TEST(AddAPass, ComputesEqualOperationsOnce) {
  EXPECT_EQ(shared(R"(x: f32[i0{4}]
a = relu(x): f32[i0{4}]
b = relu(x): f32[i0{4}]
c = exp(a): f32[i0{4}]
d = exp(b): f32[i0{4}]
y = add(c, d): f32[i0{4}]
return y
)"),
            R"(x: f32[i0{4}]
a = relu(x): f32[i0{4}]
c = exp(a): f32[i0{4}]
y = add(c, c): f32[i0{4}]
return y
)");
}

TEST(AddAPass, KeepsWhatDiffers) {
  const std::string text = R"(x: f32[i0{4}, i1{4}]
a = sum(x, dims=[0]): f32[r0{4}, i1{4}]
b = sum(x, dims=[1]): f32[i0{4}, r1{4}]
y = add(a, b): f32[i0{4}]
return y
)";
  EXPECT_EQ(shared(text), text);
}

TEST(AddAPass, ResultsStayApart) {
  const std::string text = R"(x: f32[i0{4}]
a = relu(x): f32[i0{4}]
b = relu(x): f32[i0{4}]
return a, b
)";
  EXPECT_EQ(shared(text), text);
}

}  // namespace
}  // namespace meshfuse
