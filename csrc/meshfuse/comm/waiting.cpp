// SPDX-License-Identifier: BSD-3-Clause
#include <meshfuse/base/error.h>
#include <meshfuse/comm/communicator.h>
#include <meshfuse/comm/waiting.h>

#include <charconv>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <mutex>
#include <thread>

namespace meshfuse {
namespace {

using Check = std::function<void()>;

// Never destroyed: a rank may still wait while the process runs its exit handlers.
struct InterruptCheck {
  std::mutex mutex;
  std::shared_ptr<const Check> check;
};
InterruptCheck& interruptCheck() {
  static auto& state = *new InterruptCheck;
  return state;
}

}  // namespace

void setInterruptCheck(Check check) {
  auto next = check ? std::make_shared<const Check>(std::move(check)) : nullptr;
  InterruptCheck& state = interruptCheck();
  const std::lock_guard lock(state.mutex);
  state.check.swap(next);
}

void checkInterrupt() {
  std::shared_ptr<const Check> check;
  {
    InterruptCheck& state = interruptCheck();
    const std::lock_guard lock(state.mutex);
    check = state.check;
  }
  if (check) (*check)();  // without the lock: it may take the interpreter's, or throw
}

double communicationTimeout() {
  constexpr double kDefault = 300;
  const char* text = std::getenv("MESHFUSE_TIMEOUT");
  if (text == nullptr || *text == '\0') return kDefault;
  char* end = nullptr;
  const double seconds = std::strtod(text, &end);
  MESHFUSE_CHECK(end != text && *end == '\0' && std::isfinite(seconds) && seconds > 0,
                 "MESHFUSE_TIMEOUT: \"", text,
                 "\" is not a positive number of seconds. Set it to a number such as 300, or unset "
                 "it for the default of ",
                 kDefault, " s.");
  return seconds;
}

int64_t messagePieceBytes() {
  constexpr int64_t kDefault = int64_t{1} << 30;
  const char* text = std::getenv("MESHFUSE_MESSAGE_PIECE_BYTES");
  if (text == nullptr || *text == '\0') return kDefault;
  int64_t value = 0;
  const char* end = text + std::strlen(text);
  const auto [stop, error] = std::from_chars(text, end, value);
  MESHFUSE_CHECK(error == std::errc{} && stop == end && value > 0 &&
                     value <= std::numeric_limits<int32_t>::max(),
                 "MESHFUSE_MESSAGE_PIECE_BYTES: \"", text,
                 "\" is not a positive integer below 2^31. Set it to a number of bytes such as "
                 "1048576, or unset it for the default of ",
                 kDefault, ".");
  return value;
}

void Backoff::pause() {
  using std::chrono::microseconds;
  elapsed_ = std::chrono::duration<double>(Clock::now() - start_).count();
  if (spinning()) return;
  if (elapsed_ >= next_check_) {
    checkInterrupt();
    next_check_ = elapsed_ + 0.05;
  }
  if (elapsed_ < 2e-3 + busy_) {
    std::this_thread::yield();
  } else {
    std::this_thread::sleep_for(microseconds(elapsed_ < 0.1 + busy_ ? 50 : 500));
  }
}

}  // namespace meshfuse
