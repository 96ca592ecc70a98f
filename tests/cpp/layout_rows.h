// SPDX-License-Identifier: BSD-3-Clause
// The table of semantics 2.4: schedules of a matmul output, its allocation domain after the device
// splits are repeated there, and the sizes and strides of one device's part.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "fusion_fixture.h"

namespace meshfuse {

struct LayoutRow {
  std::string name;
  std::vector<int64_t> shape;         // of the output: [..., M, N]
  std::vector<int64_t> stride_order;  // empty: none
  std::function<void(TensorView*)> schedule;
  bool on_square = false;  // mesh 2x2 (y, x), else 2 devices
  std::string allocation;
  std::vector<int64_t> sizes, strides;
  bool trivial = true;  // memory order equals logical order
};

inline constexpr int64_t kRowK = 8;  // extent of the reduction axis in all rows

inline const std::vector<LayoutRow>& layoutRows() {
  const auto outer = [](int64_t axis) {
    return [axis](TensorView* tv) { tv->outerSplit(axis, 2)->parallelize(axis, kX); };
  };
  static const std::vector<LayoutRow> rows = {
      {.name = "three_axes",
       .shape = {2, 1024, 1536},
       .stride_order = {},
       .schedule = outer(2),
       .allocation = "[i2, i1024, X2, i768, r8]",
       .sizes = {2, 1024, 768},
       .strides = {786432, 768, 1}},
      {.name = "column_major_n",
       .shape = {4, 6},
       .stride_order = {0, 1},
       .schedule = outer(1),
       .allocation = "[X2, i3, i4, r8]",
       .sizes = {4, 3},
       .strides = {1, 4},
       .trivial = false},
      {.name = "column_major_m",
       .shape = {4, 6},
       .stride_order = {0, 1},
       .schedule = outer(0),
       .allocation = "[i6, X2, i2, r8]",
       .sizes = {2, 6},
       .strides = {1, 2},
       .trivial = false},
      {.name = "order_mbn",
       .shape = {5, 4, 6},
       .stride_order = {1, 2, 0},
       .schedule = outer(2),
       .allocation = "[i4, i5, X2, i3, r8]",
       .sizes = {5, 4, 3},
       .strides = {3, 15, 1},
       .trivial = false},
      {.name = "order_bnm",
       .shape = {5, 4, 6},
       .stride_order = {2, 0, 1},
       .schedule = outer(2),
       .allocation = "[i5, X2, i3, i4, r8]",
       .sizes = {5, 4, 3},
       .strides = {12, 1, 4},
       .trivial = false},
      {.name = "cyclic",
       .shape = {4, 6},
       .stride_order = {},
       .schedule = [](TensorView* tv) { tv->innerSplit(1, 2)->parallelize(2, kX); },
       .allocation = "[i4, i3, X2, r8]",
       .sizes = {4, 3},
       .strides = {3, 1}},
      {.name = "blocks_in_serial_halves",
       .shape = {4, 12},
       .stride_order = {},
       .schedule =
           [](TensorView* tv) { tv->outerSplit(1, 2)->outerSplit(2, 2)->parallelize(2, kX); },
       .allocation = "[i4, i2, X2, i3, r8]",
       .sizes = {4, 6},
       .strides = {6, 1}},
      {.name = "two_mesh_axes_on_n",
       .shape = {4, 8},
       .stride_order = {},
       .schedule =
           [](TensorView* tv) {
             tv->outerSplit(1, 2)->outerSplit(2, 2)->parallelize(1, kY)->parallelize(2, kX);
           },
       .on_square = true,
       .allocation = "[i4, Y2, X2, i2, r8]",
       .sizes = {4, 2},
       .strides = {2, 1}},
      {.name = "m_on_y_n_on_x_column_major",
       .shape = {4, 8},
       .stride_order = {0, 1},
       .schedule =
           [](TensorView* tv) {
             tv->outerSplit(1, 2)->outerSplit(0, 2)->parallelize(0, kY)->parallelize(2, kX);
           },
       .on_square = true,
       .allocation = "[X2, i4, Y2, i2, r8]",
       .sizes = {2, 4},
       .strides = {1, 2},
       .trivial = false},
      {.name = "one_row",
       .shape = {1, 6},
       .stride_order = {0, 1},
       .schedule = outer(1),
       .allocation = "[X2, i3, b1, r8]",
       .sizes = {1, 3},
       .strides = {1, 1}},
      {.name = "no_rows",
       .shape = {0, 6},
       .stride_order = {},
       .schedule = outer(1),
       .allocation = "[i0, X2, i3, r8]",
       .sizes = {0, 3},
       .strides = {3, 1}},
  };
  return rows;
}

/// Operands of a product of the given sizes: all batch axes in the first one.
struct Product {
  TensorView *a, *b, *out;
};

/// The output of a row: stride order, mesh and splits set, allocation not yet. `symbolic`: sizes
/// other than 1 are -1.
inline Product makeRow(Fusion& fusion, const LayoutRow& row, bool symbolic = false) {
  const auto tensor = [&](std::vector<int64_t> shape) {
    for (int64_t& n : shape) n = symbolic && n != 1 ? -1 : n;
    TensorView* tv = makeContigConcreteTensor(shape);
    fusion.addInput(tv);
    return tv;
  };
  std::vector<int64_t> a = row.shape;
  a.back() = kRowK;
  Product p{.a = tensor(a), .b = tensor({kRowK, row.shape.back()}), .out = nullptr};
  p.out = matmul(p.a, p.b);
  if (!row.stride_order.empty()) p.out->setStrideOrder(row.stride_order, "test");
  p.out->setDeviceMesh(row.on_square ? DeviceMesh::createForShape({2, 2})
                                     : DeviceMesh::createForNumDevices(2));
  row.schedule(p.out);
  return p;
}

class LayoutRowTest : public FusionTest, public testing::WithParamInterface<LayoutRow> {};

inline std::string rowName(const testing::TestParamInfo<LayoutRow>& info) {
  return info.param.name;
}
inline void PrintTo(const LayoutRow& row, std::ostream* out) { *out << row.name; }

}  // namespace meshfuse
