// SPDX-License-Identifier: BSD-3-Clause
#include <meshfuse/comm/mpi_job.h>

#include <algorithm>
#include <array>

#include <ATen/core/Tensor.h>

namespace meshfuse {
namespace {

// Polling is work while messages are copied through shared memory: at least this fast.
constexpr double kSlowestBytesPerSecond = 200e6;
// Memory for messages that is kept for later calls. Fresh memory costs more than what is done in
// it.
constexpr int64_t kKeptBytes = 16 << 20;

constexpr std::array<std::string_view, 9> kNames = {"allReduce", "allGather", "reduceScatter",
                                                    "allToAll",  "broadcast", "gather",
                                                    "scatter",   "reduce",    "sendRecv"};
// Tags tell kinds of collectives apart, and the calls of an execution, which may overlap. All of
// its members count them alike.
constexpr int kKinds = 16;
constexpr int kCallTags = 2000;  // MPI has 32767 tags at least

int tagOf(std::string_view what, int64_t call_of_execution) {
  const auto kind = static_cast<int>(std::ranges::find(kNames, what) - kNames.begin()) + 1;
  return kind + kKinds * static_cast<int>(call_of_execution % kCallTags);
}

/// What is left to do of a posted call.
class PostedCall final : public Work {
 public:
  explicit PostedCall(std::function<void()> finish) : finish_(std::move(finish)) {}
  void wait() override { finish_(); }

 private:
  std::function<void()> finish_;
};

// What MPI sends without asking the receiver first: Open MPI's default between ranks of one machine
// is 4096 bytes with its header. Twice as much goes as two such messages.
constexpr int64_t kEagerBytes = 3968;

}  // namespace

MpiCommunicator::Job::Job(MpiCommunicator& group, const CollectiveCall& call)
    : me_(call.local[0]),
      in_place_(call.out.data() == call.in.data()),
      out_(call.out.begin(), call.out.end()),
      in_(call.in.begin(), call.in.end()),
      group_(group),
      what_(call.what),
      team_(call.team) {}

MpiCommunicator::Job::~Job() {
  if (pending_ == 0) {
    group_.keepScratch(std::move(memory_));
    return;
  }
  // The call failed. MPI may still write into what is not received yet: better lost than freed.
  struct Lost {
    std::vector<at::Tensor> out, in;
    std::vector<Scratch> memory;
  };
  new Lost{std::move(out_), std::move(in_), std::move(memory_)};
}

template <class Begin>
void MpiCommunicator::Job::beginPieces(Batch& batch, int64_t bytes, int sender, Begin begin) {
  const std::lock_guard lock(group_.mutex_);
  const int64_t longest =
      bytes <= 2 * kEagerBytes ? std::min(group_.piece_bytes_, kEagerBytes) : group_.piece_bytes_;
  for (int64_t at = 0; at < bytes; at += longest) {
    const auto size = static_cast<int>(std::min(longest, bytes - at));
    begin(at, size, &batch.requests.emplace_back(MPI_REQUEST_NULL));
    batch.expected.emplace_back(sender, size);
    ++pending_;
  }
  batch.bytes += bytes;
}

void MpiCommunicator::Job::send(Batch& batch, int64_t to, const std::byte* from, int64_t bytes) {
  beginPieces(batch, bytes, -1, [&](int64_t at, int size, MPI_Request* request) {
    checkMpi(
        MPI_Isend(from + at, size, MPI_BYTE, static_cast<int>(to), tag_, group_.data_, request),
        "MPI_Isend");
  });
}

void MpiCommunicator::Job::receive(Batch& batch, int64_t from, std::byte* to, int64_t bytes) {
  beginPieces(
      batch, bytes, static_cast<int>(from), [&](int64_t at, int size, MPI_Request* request) {
        checkMpi(
            MPI_Irecv(to + at, size, MPI_BYTE, static_cast<int>(from), tag_, group_.data_, request),
            "MPI_Irecv");
      });
}

void MpiCommunicator::Job::wait(Batch& batch) {
  if (batch.requests.empty()) return;
  batch.statuses.resize(batch.requests.size());
  group_.wait([&] { return done(batch); }, what_, number_,
              static_cast<double>(batch.bytes) / kSlowestBytesPerSecond);
  pending_ -= batch.requests.size();
  for (size_t i = 0; i < batch.requests.size(); ++i) {
    const auto [from, size] = batch.expected[i];
    if (from < 0) continue;
    int received = 0;
    checkMpi(MPI_Get_count(&batch.statuses[i], MPI_BYTE, &received), "MPI_Get_count");
    MESHFUSE_CHECK(received == size, what_, ": rank ", from, " sent ", received,
                   " bytes where rank ", rank(), " expects ", size,
                   ". All ranks must make the same calls with the same sizes and types.");
  }
  batch.requests.clear();
  batch.expected.clear();
  batch.bytes = 0;
}

bool MpiCommunicator::Job::done(Batch& batch) {
  int flag = 0;
  const int status = MPI_Testall(static_cast<int>(batch.requests.size()), batch.requests.data(),
                                 &flag, batch.statuses.data());
  if (status == MPI_ERR_IN_STATUS)
    for (const MPI_Status& s : batch.statuses) {
      MESHFUSE_CHECK(s.MPI_ERROR != MPI_ERR_TRUNCATE, what_, ": rank ", s.MPI_SOURCE,
                     " sent more bytes than rank ", rank(),
                     " expects. All ranks must make the same calls with the same sizes and types.");
      if (s.MPI_ERROR != MPI_ERR_PENDING) checkMpi(s.MPI_ERROR, "MPI_Testall");
    }
  checkMpi(status, "MPI_Testall");
  return flag != 0;
}

std::byte* MpiCommunicator::Job::memory(int64_t bytes) {
  return memory_.emplace_back(group_.scratch(bytes)).bytes.get();
}

// --- What the communicator does with jobs --------------------------------------------------------

MpiCommunicator::Scratch MpiCommunicator::scratch(int64_t bytes) {
  {
    const std::lock_guard lock(mutex_);
    auto best = scratch_.end();
    for (auto it = scratch_.begin(); it != scratch_.end(); ++it)
      if (it->size >= bytes && (best == scratch_.end() || it->size < best->size)) best = it;
    if (best != scratch_.end()) {
      Scratch found = std::move(*best);
      scratch_.erase(best);
      return found;
    }
  }
  // Uninitialised: writing zeros first would double the time.
  return {std::unique_ptr<std::byte[]>(new std::byte[static_cast<size_t>(bytes)]), bytes};
}

void MpiCommunicator::keepScratch(std::vector<Scratch> blocks) {
  const std::lock_guard lock(mutex_);
  int64_t kept = 0;
  for (const Scratch& block : scratch_) kept += block.size;
  for (Scratch& block : blocks) {
    if (kept + block.size > kKeptBytes) continue;
    kept += block.size;
    scratch_.push_back(std::move(block));
  }
}

void MpiCommunicator::runJob(std::unique_ptr<Job> job, Posted* posted) {
  const std::string_view what = job->what_;
  const auto turn = takeTurn(turn_, what);
  Job& next = *job;
  next.number_ = beginCall(what, &next.team_);
  next.tag_ = tagOf(what, ownsExecution() ? ++calls_of_execution_ : 0);
  jobs_.push_back(std::move(job));
  tellIfStopped(what, next.number_, [&] { next.start(); });
  if (posted == nullptr) return finishJobs(next.number_);
  *posted = std::make_unique<PostedCall>([this, what, number = next.number_] {
    const auto my_turn = takeTurn(turn_, what);
    finishJobs(number);
  });
}

void MpiCommunicator::finishJobs(int64_t last) {
  while (!jobs_.empty() && jobs_.front()->number_ <= last) {
    const std::unique_ptr<Job> job = std::move(jobs_.front());
    jobs_.pop_front();
    {
      const std::lock_guard lock(mutex_);
      await(&job->team_);
    }
    tellIfStopped(job->what_, job->number_, [&] { job->finish(); });
    const std::lock_guard lock(mutex_);
    completed_ = jobs_.empty() ? calls_ : jobs_.front()->number_ - 1;
  }
}

}  // namespace meshfuse
