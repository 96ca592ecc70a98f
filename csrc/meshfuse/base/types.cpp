// SPDX-License-Identifier: BSD-3-Clause
#include <meshfuse/base/types.h>

#include <algorithm>

namespace meshfuse {
namespace {

struct TypeRow {
  DataType type;
  std::string_view text, c, python;
};
constexpr std::array<TypeRow, kNumDataTypes> kTypes = {{
    {DataType::Double, "f64", "double", "Double"},
    {DataType::Float, "f32", "float", "Float"},
    {DataType::Half, "f16", "__half", "Half"},
    {DataType::BFloat16, "bf16", "__bfloat", "BFloat16"},
    {DataType::Int, "i64", "int64_t", "Int"},
    {DataType::Int32, "i32", "int", "Int32"},
    {DataType::UInt64, "u64", "uint64_t", "UInt64"},
    {DataType::Index, "index", "nvfuser_index_t", "Index"},
    {DataType::Bool, "bool", "bool", "Bool"},
    {DataType::ComplexFloat, "c64", "std::complex<float>", "ComplexFloat"},
    {DataType::ComplexDouble, "c128", "std::complex<double>", "ComplexDouble"},
    {DataType::Float8_e4m3fn, "f8e4m3fn", "__e4m3", "Float8_e4m3fn"},
    {DataType::Float8_e5m2, "f8e5m2", "__e5m2", "Float8_e5m2"},
    {DataType::Float8_e8m0fnu, "f8e8m0fnu", "__e8m0", "Float8_e8m0fnu"},
    {DataType::Float4_e2m1fn, "f4e2m1fn", "__e2m1", "Float4_e2m1fn"},
    {DataType::Float4_e2m1fn_x2, "f4e2m1fnx2", "__e2m1x2", "Float4_e2m1fn_x2"},
    {DataType::Null, "null", "null_type", "Null"},
}};

struct ParallelRow {
  ParallelType type;
  std::string_view text, c, python;
};
constexpr std::array<ParallelRow, kNumParallelTypes> kParallel = {{
    {ParallelType::DIDz, "z", "deviceIdx.z", "mesh_z"},
    {ParallelType::DIDy, "y", "deviceIdx.y", "mesh_y"},
    {ParallelType::DIDx, "x", "deviceIdx.x", "mesh_x"},
    {ParallelType::Stream, "stream", "streamIdx", "stream"},
    {ParallelType::BIDz, "grid_z", "blockIdx.z", "grid_z"},
    {ParallelType::BIDy, "grid_y", "blockIdx.y", "grid_y"},
    {ParallelType::BIDx, "grid_x", "blockIdx.x", "grid_x"},
    {ParallelType::TIDz, "block_z", "threadIdx.z", "block_z"},
    {ParallelType::TIDy, "block_y", "threadIdx.y", "block_y"},
    {ParallelType::TIDx, "block_x", "threadIdx.x", "block_x"},
    {ParallelType::Vectorize, "vectorize", "V", "vectorize"},
    {ParallelType::Unroll, "unroll", "UR", "unroll"},
    {ParallelType::Unswitch, "unswitch", "US", "unswitch"},
    {ParallelType::Mma, "mma", "MMA", "mma"},
    {ParallelType::Bulk, "tma", "B", "tma"},
    {ParallelType::Serial, "", "S", "serial"},
}};

int floatRank(DataType t) {  // Double > Float > the 16-bit types > float8
  switch (t) {
    case DataType::Double:
      return 4;
    case DataType::Float:
      return 3;
    case DataType::Half:
    case DataType::BFloat16:
      return 2;
    default:
      return 1;
  }
}

DataType promoteComplex(DataType a, DataType b) {
  const bool wide = a == DataType::ComplexDouble || b == DataType::ComplexDouble ||
                    a == DataType::Double || b == DataType::Double;
  return wide ? DataType::ComplexDouble : DataType::ComplexFloat;
}

}  // namespace

bool isFloating(DataType t) {
  return t <= DataType::BFloat16 || (t >= DataType::Float8_e4m3fn && t < DataType::Null);
}
bool isComplex(DataType t) { return t == DataType::ComplexFloat || t == DataType::ComplexDouble; }
bool isIntegral(DataType t) { return t >= DataType::Int && t <= DataType::Index; }
bool isReducedFloating(DataType t) { return isFloating(t) && floatRank(t) <= 2; }

DataType promoteTypes(DataType a, DataType b) {
  if (a == b || b == DataType::Null) return a;
  if (a == DataType::Null) return b;
  if (isComplex(a) || isComplex(b)) return promoteComplex(a, b);
  if (isFloating(a) && isFloating(b)) {
    if (floatRank(a) != floatRank(b)) return floatRank(a) > floatRank(b) ? a : b;
    return DataType::Float;  // Half with BFloat16, or two float8 kinds
  }
  if (isFloating(a)) return a;
  if (isFloating(b)) return b;
  if (a == DataType::Bool) return b;
  if (b == DataType::Bool) return a;
  return DataType::Int;
}

std::string_view textName(DataType t) { return kTypes[static_cast<size_t>(t)].text; }
std::string_view cName(DataType t) { return kTypes[static_cast<size_t>(t)].c; }
std::string_view pythonName(DataType t) { return kTypes[static_cast<size_t>(t)].python; }

std::optional<DataType> dataTypeFromText(std::string_view text) {
  const auto* row = std::ranges::find(kTypes, text, &TypeRow::text);
  if (row == kTypes.end()) return std::nullopt;
  return row->type;
}

std::string_view textName(ParallelType p) { return kParallel[static_cast<size_t>(p)].text; }
std::string_view cName(ParallelType p) { return kParallel[static_cast<size_t>(p)].c; }
std::string_view pythonName(ParallelType p) { return kParallel[static_cast<size_t>(p)].python; }

std::string_view name(ReduceKind k) {
  constexpr std::array<std::string_view, 8> kNames = {"sum", "prod", "min", "max",
                                                      "and", "or",   "xor", "avg"};
  return kNames[static_cast<size_t>(k)];
}

}  // namespace meshfuse
