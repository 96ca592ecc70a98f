// SPDX-License-Identifier: BSD-3-Clause
#include <meshfuse/comm/c10d_carrier.h>

#include <deque>
#include <string>
#include <thread>
#include <utility>

namespace meshfuse {

struct C10dCarrier::State {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::shared_ptr<Job>> jobs;
  bool started = false, ending = false;
};

C10dCarrier::C10dCarrier() : state_(std::make_shared<State>()) {}

C10dCarrier::~C10dCarrier() {
  const std::lock_guard lock(state_->mutex);
  state_->ending = true;
  state_->changed.notify_one();
}

bool C10dCarrier::Job::done(double patience) const {
  const std::lock_guard lock(mutex_);
  if (!done_ || failure_.empty()) return done_;
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - ended_).count() >
         patience;
}

void C10dCarrier::Job::sleep(double seconds) const {
  std::unique_lock lock(mutex_);
  ended_signal_.wait_for(lock, std::chrono::duration<double>(seconds), [this] { return done_; });
}

std::shared_ptr<C10dCarrier::Job> C10dCarrier::start(std::function<void()> work) {
  auto job = std::make_shared<Job>();
  job->work_ = std::move(work);
  const auto body = [](const std::shared_ptr<State>& state) {
    for (;;) {
      std::shared_ptr<Job> next;
      {
        std::unique_lock lock(state->mutex);
        state->changed.wait(lock, [&] { return state->ending || !state->jobs.empty(); });
        if (state->jobs.empty()) return;
        next = std::move(state->jobs.front());
        state->jobs.pop_front();
      }
      std::string failure;
      try {
        next->work_();
      } catch (const std::exception& error) {
        failure = error.what();
        if (failure.empty()) failure = "unknown error";
      } catch (...) {
        failure = "unknown error";
      }
      next->work_ = nullptr;  // before the result is seen: nothing of it is in use then
      const std::lock_guard lock(next->mutex_);
      next->failure_ = std::move(failure);
      next->ended_ = std::chrono::steady_clock::now();
      next->done_ = true;
      next->ended_signal_.notify_one();
    }
  };
  const std::lock_guard lock(state_->mutex);
  if (!std::exchange(state_->started, true)) std::thread(body, state_).detach();
  state_->jobs.push_back(job);
  state_->changed.notify_one();
  return job;
}

}  // namespace meshfuse
