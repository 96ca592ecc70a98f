// SPDX-License-Identifier: BSD-3-Clause
// The small enumerations of the IR and their names: data types, kinds of axes, parallel types,
// reductions.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>

namespace meshfuse {

/// Element types. `Int` has 64 bits; `Index` accepts Int and Int32 when bound; `Null` means "keep".
enum class DataType : uint8_t {
  Double,
  Float,
  Half,
  BFloat16,
  Int,
  Int32,
  UInt64,
  Index,
  Bool,
  ComplexFloat,
  ComplexDouble,
  Float8_e4m3fn,
  Float8_e5m2,
  Float8_e8m0fnu,
  Float4_e2m1fn,
  Float4_e2m1fn_x2,
  Null
};
inline constexpr int kNumDataTypes = static_cast<int>(DataType::Null) + 1;

enum class IterType : uint8_t { Iteration, Reduction, Broadcast, Symbolic };

/// How a loop axis is run. DID* are mesh axes; Stream is accepted and runs in one piece; the others
/// are names of CUDA schedules, accepted by name only.
enum class ParallelType : uint8_t {
  DIDz,
  DIDy,
  DIDx,
  Stream,
  BIDz,
  BIDy,
  BIDx,
  TIDz,
  TIDy,
  TIDx,
  Vectorize,
  Unroll,
  Unswitch,
  Mma,
  Bulk,
  Serial
};
inline constexpr int kNumParallelTypes = static_cast<int>(ParallelType::Serial) + 1;
/// The most devices that a mesh has; they are numbered below it.
inline constexpr int64_t kMaxDevices = int64_t{1} << 20;

/// Mesh axes, x first.
inline constexpr std::array<ParallelType, 3> kDeviceTypes = {ParallelType::DIDx, ParallelType::DIDy,
                                                             ParallelType::DIDz};

/// How partial results over a reduction factor combine.
enum class ReduceKind : uint8_t { Sum, Prod, Min, Max, And, Or, Xor, Avg };

constexpr bool isDeviceType(ParallelType p) { return p <= ParallelType::DIDx; }
/// Place of a mesh axis counted from the innermost mesh axis: x 0, y 1, z 2.
constexpr int meshAxisOffset(ParallelType p) {
  return static_cast<int>(ParallelType::DIDx) - static_cast<int>(p);
}

bool isFloating(DataType);  // real floating point, float8 included
bool isComplex(DataType);
bool isIntegral(DataType);  // integers and Index, without Bool
/// Half, BFloat16 and the float8 types: pointwise arithmetic on them gives Float.
bool isReducedFloating(DataType);
/// Common type of two operands as torch promotes tensors of equal rank class.
DataType promoteTypes(DataType, DataType);

std::string_view textName(DataType);    // IR text: "f32"
std::string_view cName(DataType);       // messages, printMath: "float", "__half"
std::string_view pythonName(DataType);  // "Float"
std::optional<DataType> dataTypeFromText(std::string_view);

std::string_view textName(ParallelType);    // IR text: "x", "y", "z", "stream", ...; "" for Serial
std::string_view cName(ParallelType);       // printed ids: "deviceIdx.x", "S"
std::string_view pythonName(ParallelType);  // "mesh_x"
std::string_view name(ReduceKind);          // "sum"

inline std::ostream& operator<<(std::ostream& o, DataType t) { return o << cName(t); }
inline std::ostream& operator<<(std::ostream& o, ParallelType t) { return o << pythonName(t); }

}  // namespace meshfuse
