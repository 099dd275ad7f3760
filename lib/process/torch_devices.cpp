// SPDX-License-Identifier: Apache-2.0
#include "process/torch_devices.hpp"

#include "core/text.hpp"
#include "core/unique_fd.hpp"
#include "process/bounded_child.hpp"

#include <array>
#include <chrono>
#include <fmt/format.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

namespace elastrun::process {
namespace {

// Extensions rename the back end PrivateUse1 to theirs and put a module of that name into torch;
// those that torch has itself have one, too. The answer is one line: a type and a number, or "!"
// and why there is none. It goes where extensions, which like to print, do not reach. A folder
// named torch where the job was started is not asked: the scripts of workers do not import it.
constexpr const char* kQuestion = R"(
import os, sys
if sys.path[:1] == [""]:
    del sys.path[0]
answer = os.dup(1)
os.dup2(2, 1)
def say(text):
    os.write(answer, text.encode())
    os._exit(0)
name = sys.argv[1]
try:
    import torch
except ImportError as error:
    say("!%s cannot import torch: %s" % (sys.executable, error))
try:
    if name == "auto":
        there = torch.accelerator.is_available()
        name = torch.accelerator.current_accelerator().type if there else "cpu"
        count = torch.accelerator.device_count() if there else 0
    else:
        module = getattr(torch, name, None)
        if not hasattr(module, "device_count") or not hasattr(module, "is_available"):
            say("!torch %s knows no accelerator of this name" % torch.__version__)
        count = module.device_count() if module.is_available() else 0
except Exception as error:
    say("!torch says: %r" % error)
say("%s %d" % (name, count))
)";

std::string content_of(int file) {
  std::array<char, 1024> text{};
  const auto size = ::pread(file, text.data(), text.size(), 0);
  return {text.data(), size > 0 ? static_cast<std::size_t>(size) : 0};
}

void become_python(const std::string& interpreter, const std::string& name, int answer) {
  ::dup2(answer, STDOUT_FILENO);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  // Where this returns, the child ends without an answer, which is told as such.
  ::execlp(interpreter.c_str(), interpreter.c_str(), "-c", kQuestion, name.c_str(), nullptr);
}

/// While it lives, the end of a child and the signals that end a job wait to be taken, as
/// do_in_child() expects. A command line is read before the job has blocked them.
class BlockedSignals {
 public:
  BlockedSignals() {
    sigset_t blocked;
    ::sigemptyset(&blocked);
    for (const int one : {SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM}) ::sigaddset(&blocked, one);
    ::sigprocmask(SIG_BLOCK, &blocked, &before_);
  }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;
  ~BlockedSignals() { ::sigprocmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_{};
};

}  // namespace

bool has_other_accelerators(const DeviceSources& sources) {
  for (const char* file : {"/davinci0", "/accel/accel0", "/mtgpu.0", "/cambricon_dev0"}) {
    if (::access((sources.dev + file).c_str(), F_OK) == 0) return true;
  }
  return false;
}

Result<spec::Accelerators> ask_torch(const std::string& interpreter, const std::string& name) {
  using std::chrono::seconds;
  // A file in memory, not a pipe: what torch's extensions start and leave cannot keep it open for
  // us.
  const UniqueFd answer(::memfd_create("accelerators", MFD_CLOEXEC));
  const BlockedSignals blocked;
  const auto ask = [&] { become_python(interpreter, name, answer.get()); };
  if (!answer || !do_in_child(ask, {.limit = seconds(120), .after_signal = seconds(1)})) {
    return fail(Code::Io, "the system makes no process for " + interpreter);
  }
  const auto text = content_of(answer.get());
  if (text.starts_with('!')) return fail(Code::Usage, text.substr(1));
  const auto space = text.find(' ');
  const auto count = parse_int(space == std::string::npos ? "" : text.substr(space + 1));
  if (!count || *count < 0 || *count > 4096) {
    return fail(Code::Usage, interpreter + " gave no answer about torch's accelerators");
  }
  return spec::Accelerators{text.substr(0, space), static_cast<int>(*count)};
}

}  // namespace elastrun::process
