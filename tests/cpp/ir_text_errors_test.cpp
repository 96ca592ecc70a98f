// SPDX-License-Identifier: BSD-3-Clause
// Texts that are no program: exact messages, and no crash on damaged texts.
#include <gtest/gtest.h>
#include <meshfuse/base/error.h>
#include <meshfuse/text/ir_text.h>
#include <meshfuse/text/parser.h>

#include <random>

namespace meshfuse {
namespace {

std::string messageOf(const std::string& text) {
  try {
    parseIr(text);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

struct Case {
  const char* text;
  const char* message;
};

void check(const std::vector<Case>& cases) {
  for (const Case& c : cases) EXPECT_EQ(messageOf(c.text), c.message) << c.text;
}

TEST(IrTextErrors, Words) {
  check({
      {"a: f32[i0{4}]\n  $b",
       "parseIr: line 2, column 3: '$' starts no word of the text form. Remove it."},
      {"a: f32[i0{\xC3\xA4}]",
       "parseIr: line 1, column 11: this character starts no word of the text form. Remove it."},
      {"a: f32[i0{99999999999999999999}]",
       "parseIr: line 1, column 11: '99999999999999999999' does not fit in 64 bits. Use a smaller "
       "number."},
      {"a: f32[i0{9223372036854775808}]",
       "parseIr: line 1, column 11: '9223372036854775808' does not fit in 64 bits. Use a smaller "
       "number."},
      {"return 1e999",
       "parseIr: line 1, column 8: '1e999' is no number of 64 bits. Write inf for an infinity, 0.0 "
       "for less than the least number."},
      {"a: f32[i0{4}] mesh(x=2 \"dp)",
       "parseIr: line 1, column 24: the string has no end on its line. Close it with '\"'."},
  });
}

TEST(IrTextErrors, Lines) {
  check({
      {"a: f32[i0{8}] { i1{2}, i2{4} = split i0 outer 2; i3{2}, i4{4} = split i0 outer 2; "
       "logical i1 i2 }",
       "parseIr: line 1, column 50: an axis is split or merged twice before 'logical'. Transform "
       "each axis once."},
      {"a: f32[i0{8}] { i1{2}rf, i2{4} = split i0 outer 2 }\nreturn a",
       "parseIr: line 1, column 17: 'rf' stands behind i1, which a split or merge makes. Leave it "
       "out: it follows from 'logical'."},
      {"return }",
       "parseIr: line 1, column 8: found '}', expected a number, a size such as a.0, or an "
       "expression in parentheses."},
      {"",
       "parseIr: line 1, column 1: found the end of the text, expected a definition or 'return'."},
      {"a: f32[i0{4}]\n",
       "parseIr: line 2, column 1: found the end of the text, expected a definition or 'return'."},
      {"a f32", "parseIr: line 1, column 3: found 'f32', expected ':' or '='."},
      {"a, b: f32[]", "parseIr: line 1, column 5: found ':', expected '='."},
      {"a: f32[i0{4}] b", "parseIr: line 1, column 15: found 'b', expected the end of the line."},
      {"a: f33[i0{4}]",
       "parseIr: line 1, column 4: found 'f33', expected a data type such as f32."},
      {"a: null[i0{4}]",
       "parseIr: line 1, column 4: found 'null', expected a data type such as f32."},
      {"a: f32[]\na: f32[]",
       "parseIr: line 2, column 1: 'a' is defined twice. Give each value its own name."},
      {"true: f32[]",
       "parseIr: line 1, column 1: 'true' has a meaning of its own. Choose another name."},
      {"return a", "parseIr: line 1, column 8: 'a' is not defined above. Define it first."},
      {"return\na: f32[]",
       "parseIr: line 2, column 1: found 'a', expected nothing more after 'return'."},
      {"a: f32[]\nb = relu(a): f32[]\nreturn b -> b",
       "parseIr: line 3, column 13: 'b' is not an input. A result can be written into an input "
       "only."},
      {"a: f32[]\nreturn a a", "parseIr: line 2, column 10: found 'a', expected ','."},
  });
}

TEST(IrTextErrors, Axes) {
  check({
      {"a: f32[q0{4}]",
       "parseIr: line 1, column 8: found 'q0', expected an axis such as i0, r1 or b2."},
      {"a: f32[i0]", "parseIr: line 1, column 10: found ']', expected '{'."},
      {"a: f32[i0{4}, i0{5}]",
       "parseIr: line 1, column 15: the number of i0 is taken by another axis. Use each number "
       "once."},
      {"a: f32[i0{-4}]", "parseIr: line 1, column 11: found -4, expected at least 0."},
      {"a: f32[i0{4}@w]",
       "parseIr: line 1, column 14: found 'w', expected a parallel type such as x, y, z or "
       "stream."},
      {"a: f32[i0{2.5}]", "parseIr: line 1, column 11: found '2.5', expected an integer."},
      {"a: f32[i0{a}]",
       "parseIr: line 1, column 11: found 'a', expected a scalar, such as the size a.0."},
      {"a: f32[i0{a.1}]",
       "parseIr: line 1, column 11: a.1 is the size of no axis: the tensor has 1. Count axes from "
       "0."},
      {"a: f32[i0{b.0}]", "parseIr: line 1, column 11: 'b' is not defined above. Define it first."},
      {"a: f32[i0{(foo(2, 3))}]",
       "parseIr: line 1, column 12: found 'foo', expected a scalar function such as add or "
       "ceilDiv."},
      {"a: f32[i0{4}] cpu",
       "parseIr: line 1, column 4: only a tensor without axes can be 'cpu'. Remove the word."},
  });
}

TEST(IrTextErrors, Schedules) {
  const auto a = [](const std::string& items) {
    return messageOf("a: f32[i0{4}, i1{8}] { " + items + " }\nreturn a");
  };
  const std::string at = "parseIr: line 1, column ";
  EXPECT_EQ(
      a("i2{2}, i3{5} = split i1 outer 2"),
      at + "31: i3 is written with the size 5, but the transform gives 4. Correct one of them.");
  EXPECT_EQ(a("r2{2}, i3{4} = split i1 outer 2"),
            at + "24: r2 is not of the kind that the transform gives. Use the letter of the axis "
                 "that is transformed.");
  EXPECT_EQ(a("i2{2}, i3{4} = split i9 outer 2"),
            at + "45: axis i9 is not defined before. Define it first.");
  EXPECT_EQ(a("i2{2}, i3{4} = split r1 outer 2"),
            at + "45: axis r1 is of another kind where it is defined. Use that letter.");
  EXPECT_EQ(a("i2{2}, i3{4} = split i1 outer 0"), at + "54: found 0, expected at least 1.");
  EXPECT_EQ(a("i2{2}, i3{4} = split i1 2"), at + "48: found '2', expected 'outer' or 'inner'.");
  EXPECT_EQ(a("i2{2}, i3{4} = cut i1 outer 2"), at + "39: found 'cut', expected 'split'.");
  EXPECT_EQ(a("i2{32} = merge i0 i0"), at + "42: axis i0 is listed twice. List each axis once.");
  EXPECT_EQ(a("loop i0"),
            at + "24: the axes of 'loop' do not stand for the same elements as the logical axes. "
                 "Reach every logical axis once through splits and merges.");
  EXPECT_EQ(a("loop i0 i1; loop i1 i0"), at + "36: 'loop' stands twice. Write it once.");
  EXPECT_EQ(a("alloc"), at + "30: found '}', expected 'loop', axes or 'contig'.");
  EXPECT_EQ(a("alloc contig t"),
            at + "24: 1 flags after 'contig' for 2 axes. Write one of t, f, n per axis.");
  EXPECT_EQ(
      a("alloc contig t n"),
      at + "39: flag 1 is 'n'. Write n for a broadcast or a reduction, and t or f for other axes.");
  EXPECT_EQ(a("stack i0"),
            at + "24: found 'stack', expected a transform, 'logical', 'loop' or 'alloc'.");
  EXPECT_EQ(a("loop i1 i0; logical i0 i1"),
            at + "24: 'loop' stands before 'logical'. Put it behind.");
  EXPECT_EQ(a("i2{2}, i3{4} = split i1 outer 2; logical i0 i2"),
            at + "57: the logical axes do not stand for all root axes. List what the transforms "
                 "before leave of them.");
  check({
      {"a: f32[i0{4}, r1{8}] { i2{32} = merge i0 r1 }\nreturn a",
       "parseIr: line 1, column 24: a reduction is merged with an axis that is none. Merge axes of "
       "one kind."},
      {"a: f32[i0{9223372036854775807}, i1{8}] { i2{3} = merge i0 i1 }\nreturn a",
       "mul: the result of 9223372036854775807 and 8 does not fit in 64 bits. Use smaller sizes."},
  });
}

TEST(IrTextErrors, Meshes) {
  check({
      {"a: f32[] mesh(y=2)",
       "parseIr: line 1, column 10: a mesh has the axes y. Name x, the outermost first."},
      {"a: f32[] mesh(x=2, y=2)",
       "parseIr: line 1, column 10: a mesh has the axes x, y. Name y, x, the outermost first."},
      {"a: f32[] mesh(w=1, z=1, y=1, x=1)",
       "parseIr: line 1, column 10: a mesh has the axes w, z, y, x. Name at most z, y, x, the "
       "outermost first."},
      {"a: f32[] mesh(x=0)",
       "parseIr: line 1, column 17: a mesh has from 1 to 1048576 devices. Use another number."},
      {"a: f32[] mesh(y=2000, x=2000)",
       "parseIr: line 1, column 25: a mesh has from 1 to 1048576 devices. Use another number."},
      {"a: f32[] mesh(x=2: 1 1)",
       "parseIr: line 1, column 10: DeviceMesh: found duplicates: device 1 stands more than once "
       "in [1, 1]. Name each device once."},
      {"a: f32[i0{4}@x] mesh(x=2)\nreturn a",
       "parseIr: line 1, column 4: verify: a piece of axis 0 of a of size 4 is on mesh_x, which "
       "has 2 "
       "devices. Split the axis by 2 first, and parallelize that half."},
  });
}

TEST(IrTextErrors, Operations) {
  const auto of = [](const std::string& line) {
    return messageOf("a: f32[i0{4}, i1{8}]\nb: f32[i0{8}, i1{6}]\n" + line);
  };
  const std::string at = "parseIr: line 3, column ";
  EXPECT_EQ(of("c = matmull(a, b)"),
            at + "5: there is no op 'matmull'. The ops are listed in docs/ops.md.");
  EXPECT_EQ(of("c = matmul(a)"), at + "13: matmul lacks the arguments: arg2. Give them.");
  EXPECT_EQ(of("c = matmul(a, b, a)"), at + "18: matmul takes 2 arguments. Remove the rest.");
  EXPECT_EQ(of("c = matmul(a, arg1=b)"),
            at + "15: the argument arg1 of matmul is given twice. Give it once.");
  EXPECT_EQ(of("c = matmul(arg1=a, b)"),
            at + "20: found 'b', expected a keyword, since one stands before.");
  EXPECT_EQ(of("c = sum(a, dimension=[0])"),
            at + "12: sum has no argument 'dimension'. Use one of: arg, dims, keepdim, dtype.");
  EXPECT_EQ(of("c = matmul(a, x)"), at + "15: 'x' is not a tensor defined above. Define it first.");
  EXPECT_EQ(of("c = sum(a, keepdim=1)"), at + "20: found '1', expected 'true' or 'false'.");
  EXPECT_EQ(of("c = sum(a, dims=[1.5])"), at + "18: found '1.5', expected an integer.");
  EXPECT_EQ(of("c = cast(a, dtype=float)"),
            at + "19: found 'float', expected a data type such as f32.");
  EXPECT_EQ(of("c = add(a, 2:f32)"), at + "12: '2' is no constant of type f32. Write it as one.");
  EXPECT_EQ(of("c = gelu(a, approximate=none)"),
            at + "25: found 'none', expected a string in double quotes.");
  EXPECT_EQ(of("c = matmul(a, b)"), at + "17: found the end of the text, expected ':'.");
  EXPECT_EQ(of("c, d = matmul(a, b): f32[]"),
            at + "1: matmul gives 1 results for 2 names. Name each result.");
  EXPECT_EQ(of("c = matmul(a, b): f32[i0{4}, i1{6}]"),
            at + "19: the text says f32[i{4}, i{6}], but matmul gives f32[i{4}, i{6}, r{8}]. "
                 "Correct the type.");
  EXPECT_EQ(of("c = matmul(a, b): f64[i0{4}, i1{6}, r2{8}]"),
            at + "19: the text says f64[i{4}, i{6}, r{8}], but matmul gives f32[i{4}, i{6}, r{8}]. "
                 "Correct the type.");
  EXPECT_EQ(of("c = matmul(a, b): f32"),
            at + "19: found 'f32', expected a type with '[' behind the data type.");
  EXPECT_EQ(of("c = add(1, 2): i64"), at + "5: all operands of add are scalars. Write the "
                                           "expression in parentheses where it is used.");
  const std::string note = "\n  while reading line 3, column 5";
  EXPECT_NE(of("c = matmul(b, a): f32[]").find(note), std::string::npos)
      << of("c = matmul(b, a): f32[]");
}

TEST(IrTextErrors, DeepNesting) {
  const std::string deep(100000, '(');
  EXPECT_EQ(
      messageOf("a: f32[i0{" + deep + "}]"),
      "parseIr: line 1, column 212: an expression is nested more than 200 deep. Make it simpler.");
}

TEST(IrTextErrors, DamagedTextsNeverCrash) {
  const std::vector<std::string> inputs = {
      "a: f32[i0{a.0}, i1{8}, b2{1 exp 6}] { i3{2}@x, i4{4} = split i1 outer 2; "
      "loop i3 i0 i4 b2; alloc i3 i0 b2 i4 contig t f n t } mesh(y=2 \"dp\", x=2 \"tp\": 3 1 0 "
      "2)\n",
      "b: f32[i0{8}, i1{6}] { i2{2}@x, i3{3} = split i1 outer 2 } mesh(x=2)\n",
      "w: f32[i0{6}, i1{8}] { alloc i1 i0 }\n", "s0: f64\n", "e: f16[] cpu\n"};
  const std::vector<std::string> operations = {
      "c = matmul(w, b): f32[i0{6}, i1{6}, r2{8}]\n",
      "d = add(b, (add(s0, 2.5))): f32[i0{8}, i1{6}] { i2{48} = merge i0 i1; alloc loop }\n",
      "f = sum(b, dims=[0, -1], keepdim=true, dtype=f64): f64[r0{8}, b1{1}, r2{6}, b3{1}]\n",
      "g = linear(w, w, none): f32[i0{6}, i1{6}, r2{8}]\n",
      "h = mul(complex(1.0, -2.0), b): c64[i0{8}, i1{6}]\n",
      "p = sum(b, dims=[0]): f32[r0{8}, i1{6}] { i2{2}@x, r3{4} = split r0 outer 2; "
      "logical i2 r3 i1 } mesh(x=2)\n",
      "q = add(a, e): f32[i0{a.0}, i1{8}, i2{6}]\n"};
  const std::string letters = "[]{}(),;:=@.->\"\n 0123456789abefilnrstxyz_";
  std::mt19937 random(20240607);
  const auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
  int accepted = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string text, results = "return a -> a, s0, (mul(a.0, 2)), -inf";
    for (const std::string& line : inputs) text += line;
    for (const std::string& line : operations) {
      if (below(3) != 0) continue;
      text += line;
      results += std::string(", ") + line[0];
    }
    text += results;
    for (size_t edits = below(4); edits > 0 && !text.empty(); --edits) {
      const size_t at = below(text.size());
      switch (below(4)) {
        case 0:
          text[at] = letters[below(letters.size())];
          break;
        case 1:
          text.erase(at, 1 + below(6));
          break;
        case 2:
          text.insert(at, 1, letters[below(letters.size())]);
          break;
        default:
          text.insert(at, text.substr(below(text.size()), 1 + below(12)));
      }
    }
    try {
      const auto fusion = parseIr(text);
      const auto again = parseIr(irText(*fusion));
      EXPECT_TRUE(again->sameAs(*fusion)) << text;
      ++accepted;
    } catch (const Error&) {
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what() << "\n" << text;
    }
  }
  EXPECT_GT(accepted, 5000);  // a quarter of the texts has no damage
}

}  // namespace
}  // namespace meshfuse
