// SPDX-License-Identifier: Apache-2.0
#include "launcher/restart_check.hpp"

#include "core/log.hpp"

#include <utility>

namespace elastrun::agent {

RestartCheck::RestartCheck(const boost::asio::any_io_executor& loop, Clock& clock,
                           std::vector<std::string> directories, std::size_t workers, Needs needs)
    : clock_(clock),
      needs_(std::move(needs)),
      check_(std::make_shared<NodeCheck>(std::move(directories), workers)),
      calls_(loop, files::BlockingCalls::WithoutThread::Refuse),
      limit_(clock.make_alarm()) {
  calls_.make(
      "the GPUs of this node", [check = check_]() -> Result<bool> { return check->begin(), true; },
      [](const Result<bool>&) {});
}

void RestartCheck::look(Then then) {
  then_ = std::move(then);
  limit_->arm(clock_.now() + kLimit, [this] {
    log::warning("restarts", "The check of this node has not ended within 5 s; it goes on without");
    answer({});
  });
  calls_.make(
      "the check of this node",
      [check = check_, needs = needs_()]() -> Result<std::string> { return check->fault(needs); },
      [this, alive = lifetime_.token()](const Result<std::string>& fault) {
        if (alive) answer(fault.value_or(std::string()));
      });
}

// One that comes after its time belongs to no restart any more.
void RestartCheck::answer(std::string fault) {
  limit_->disarm();
  if (!fault.empty()) log::warning("restarts", "This node fails its check: {}", fault);
  if (auto then = std::exchange(then_, {})) then(std::move(fault));
}

}  // namespace elastrun::agent
