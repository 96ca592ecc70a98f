// SPDX-License-Identifier: BSD-3-Clause
// A thread that waits for process groups, whose waits nothing can end, so that the thread that
// wants the result can look at other things.
#pragma once
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

namespace meshfuse {

class C10dCarrier {
 public:
  /// One job; it may outlive the carrier.
  class Job {
   public:
    /// Whether it is over. After a failure only when `patience` seconds have passed since, so that
    /// the cause, a rank that ended, may be heard of first.
    bool done(double patience) const;
    /// Returns when it is over, or after some seconds.
    void sleep(double seconds) const;
    /// Why it failed, or empty. Only when it is over.
    const std::string& failure() const { return failure_; }

   private:
    friend class C10dCarrier;
    std::function<void()> work_;
    mutable std::mutex mutex_;
    mutable std::condition_variable ended_signal_;
    bool done_ = false;
    std::string failure_;
    std::chrono::steady_clock::time_point ended_;
  };

  C10dCarrier();
  ~C10dCarrier();
  C10dCarrier(const C10dCarrier&) = delete;
  C10dCarrier& operator=(const C10dCarrier&) = delete;

  /// Starts `work`, which must own all that it uses: it may go on when nobody waits any more.
  std::shared_ptr<Job> start(std::function<void()> work);

 private:
  struct State;
  std::shared_ptr<State> state_;  // shared with the thread
};

}  // namespace meshfuse
