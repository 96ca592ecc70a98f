// SPDX-License-Identifier: BSD-3-Clause
// What a rank is about to run, for the comparison with the other ranks (Communicator::agree).
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace meshfuse {

/// What a rank says of itself when the ranks do not agree.
struct Statement {
  int64_t rank = 0;
  std::string text;  // of Proposal::describe
};

class Proposal {
 public:
  virtual ~Proposal() = default;

  /// Equal to that of `rank` towards this rank if the two would run the same; a hash.
  virtual uint64_t fingerprint(int64_t rank) const = 0;
  /// Goes to all other members with the fingerprint.
  virtual std::string enclosure() const { return {}; }
  /// Takes that of `rank`, whose fingerprint is the right one. False: it contradicts what this rank
  /// has, or another member's. All members must find so, since all get all enclosures.
  virtual bool take(int64_t rank, std::string_view enclosure) const {
    (void)rank, (void)enclosure;
    return true;
  }
  /// All that the fingerprints are made of, as text. Only called when the ranks do not agree.
  virtual std::string describe() const = 0;
  /// Throws Error with the first difference. `statements`: those of all ranks, this one's too, in
  /// order of ranks.
  virtual void disagree(std::span<const Statement> statements) const = 0;
};

}  // namespace meshfuse
