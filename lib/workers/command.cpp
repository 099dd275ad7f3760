// SPDX-License-Identifier: Apache-2.0
#include "workers/command.hpp"

#include "core/text.hpp"

#include <fmt/format.h>
#include <sys/stat.h>

namespace elastrun::workers {
const std::string_view kRunPathProgram = R"PY(
import sys

def elastrun_wait_for_the_others(channel):
    # As torch's: a worker that ends early takes down what others still use (a store, shared memory).
    import socket
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as agent:
            agent.connect(channel)
            agent.send(b'{"kind":"returned"}')
            agent.recv(1)  # the agent ends the connection when all have returned
    except OSError:
        pass

def elastrun_run_path():
    import faulthandler, os, runpy
    del sys.argv[0]
    channel = os.path.abspath(os.environ.get("ELASTRUN_CHANNEL") or os.devnull)
    worker = os.getpid()
    try:
        faulthandler.enable(all_threads=True)
    except Exception:
        pass
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except Exception as error:
        import json, time, traceback
        path = os.environ.get("TORCHELASTIC_ERROR_FILE")
        if path:
            info = {"py_callstack": traceback.format_exc(), "timestamp": str(int(time.time()))}
            text = "%s: %s" % (type(error).__name__, error)
            with open(path, "w") as out:
                json.dump({"message": {"message": text, "extraInfo": info}}, out)
        raise
    if os.getpid() == worker:  # and not a child that it forked
        elastrun_wait_for_the_others(channel)

elastrun_run_path()
)PY";

std::string fill_local_rank(std::string_view text, int local_rank) {
  return fill_template(text, {{"local_rank", std::to_string(local_rank)}});
}

std::string why_not_again(const spec::JobSpec& spec) {
  struct stat info {};
  const bool is_input = spec.mode == spec::Mode::Script && spec.script == "-";
  const bool is_path = spec.mode == spec::Mode::Script || spec.mode == spec::Mode::RunPath;
  // Python opens a regular file that is /dev/stdin again, and reads it from its begin.
  const bool is_pipe = is_path && ::stat(spec.script.c_str(), &info) == 0 &&
                       (S_ISFIFO(info.st_mode) || S_ISCHR(info.st_mode));
  if (!is_input && !is_pipe) return {};
  return fmt::format(
      "the script {} is {}, which can be read only once; give elastrun a file to have it restarted",
      spec.script, is_input ? "standard input" : "a pipe");
}

std::vector<std::string> worker_command(const spec::JobSpec& spec, int local_rank) {
  std::vector<std::string> argv;
  argv.reserve(spec.script_args.size() + 4);
  switch (spec.mode) {
    case spec::Mode::Script:
      // Unbuffered, as by torchrun: what a worker printed before it was killed is in its log.
      argv = {spec.interpreter, "-u", fill_local_rank(spec.script, local_rank)};
      break;
    case spec::Mode::Module:
      argv = {spec.interpreter, "-u", "-m", fill_local_rank(spec.script, local_rank)};
      break;
    case spec::Mode::Program:
      // As torch, which fills in arguments alone: the program is not one of them.
      argv = {spec.script};
      break;
    case spec::Mode::RunPath:
      argv = {spec.interpreter, "-c", std::string(kRunPathProgram),
              fill_local_rank(spec.script, local_rank)};
      break;
  }
  for (const auto& argument : spec.script_args) {
    argv.push_back(fill_local_rank(argument, local_rank));
  }
  return argv;
}

// With --run-path torchrun runs its function of this name, and shows it in log and report.
std::string program_name(const spec::JobSpec& spec) {
  switch (spec.mode) {
    case spec::Mode::Program:
      return spec.script;
    case spec::Mode::RunPath:
      return "run_script_path";
    default:
      return spec.interpreter;
  }
}

std::string program_base_name(const spec::JobSpec& spec) {
  const auto program = program_name(spec);
  return program.substr(program.rfind('/') + 1);
}

std::string entry_name(const spec::JobSpec& spec) {
  if (spec.mode == spec::Mode::RunPath) return "run_script_path";
  if (spec.mode == spec::Mode::Program) return spec.script;
  return spec.interpreter_given ? spec.interpreter : spec.script;
}

}  // namespace elastrun::workers
