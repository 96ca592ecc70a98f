// SPDX-License-Identifier: BSD-3-Clause
// How a rank waits for others: it spins while the wait is short, then yields, then sleeps.
#pragma once
#include <chrono>

namespace meshfuse {

/// Paces a polling loop. The first 50 us cost no latency; later pauses stay under 1 ms.
class Backoff {
 public:
  /// `busy`: seconds in which the polling itself is expected to do work, so that it never sleeps.
  explicit Backoff(double busy = 0) : busy_(busy) {}
  /// Returns after a pause that grows with the time waited. Calls checkInterrupt() (which may
  /// throw) about every 50 ms.
  void pause();
  /// Seconds since construction, as of the last pause.
  double elapsed() const { return elapsed_; }
  /// Whether the wait is still so short that only the awaited thing itself need be looked at.
  bool spinning() const { return elapsed_ < 50e-6; }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point start_ = Clock::now();
  double elapsed_ = 0;
  double busy_;
  double next_check_ = 0.05;
};

}  // namespace meshfuse
