// SPDX-License-Identifier: Apache-2.0
#include "workers/command.hpp"

#include <doctest/doctest.h>

namespace elastrun::workers {
namespace {

using Words = std::vector<std::string>;

spec::JobSpec job(spec::Mode mode) {
  spec::JobSpec spec;
  spec.mode = mode;
  spec.interpreter = "/usr/bin/python3";
  spec.script = "job$local_rank.py";
  spec.script_args = {"a", "--gpu=$local_rank"};
  return spec;
}

TEST_CASE("command: each mode has torchrun's words") {
  CHECK(worker_command(job(spec::Mode::Script), 1) ==
        Words{"/usr/bin/python3", "-u", "job1.py", "a", "--gpu=1"});
  CHECK(worker_command(job(spec::Mode::Module), 1) ==
        Words{"/usr/bin/python3", "-u", "-m", "job1.py", "a", "--gpu=1"});
  CHECK(worker_command(job(spec::Mode::Program), 1) == Words{"job$local_rank.py", "a", "--gpu=1"});
  CHECK(worker_command(job(spec::Mode::RunPath), 1) ==
        Words{"/usr/bin/python3", "-c", std::string(kRunPathProgram), "job1.py", "a", "--gpu=1"});
}

TEST_CASE("command: only the local rank and $$ are filled in, as Python's safe_substitute does") {
  const std::pair<const char*, const char*> table[] = {
      {"$local_rank", "3"},
      {"x${local_rank}y", "x3y"},
      {"$$", "$"},
      {"$$local_rank", "$local_rank"},
      {"$x", "$x"},
      {"${x}", "${x}"},
      {"$1", "$1"},
      {"$", "$"},
      {"$LOCAL_RANK", "$LOCAL_RANK"},
      {"$local_rankx", "$local_rankx"},
      {"${local_rank", "${local_rank"},
      {"", ""},
      {"$local_rank$local_rank", "33"},
      {"$$$local_rank", "$3"},
      {"${local_rank }", "${local_rank }"},
      {"a$", "a$"},
      {"${}", "${}"},
  };
  for (const auto& [text, wanted] : table) CHECK(fill_local_rank(text, 3) == wanted);
}

TEST_CASE("command: the report is titled with what the user typed") {
  CHECK(entry_name(job(spec::Mode::Script)) == "job$local_rank.py");
  CHECK(entry_name(job(spec::Mode::RunPath)) == "run_script_path");
  auto own = job(spec::Mode::Script);
  own.interpreter = "echo";
  own.interpreter_given = true;
  CHECK(entry_name(own) == "echo");
  CHECK(program_name(job(spec::Mode::Program)) == "job$local_rank.py");
  CHECK(program_name(job(spec::Mode::Module)) == "/usr/bin/python3");
}

}  // namespace
}  // namespace elastrun::workers
