// SPDX-License-Identifier: Apache-2.0
#include "spec/program.hpp"

#include "unit/spec/fakes.hpp"

#include <doctest/doctest.h>

namespace elastrun::spec {

TEST_CASE("program: the interpreter is PYTHON_EXEC, that of PATH, or the active environment's") {
  FakeMachine machine;
  machine.variables["PATH"] = "/a::/b";
  machine.programs = {"/b/python3", "/a/python", "./tool"};
  const auto interpreter = [&] { return machine.job({"train.py"}).spec.interpreter; };
  CHECK(interpreter() == "/b/python3");
  machine.variables["VIRTUAL_ENV"] = "/v";
  machine.programs.insert("/v/bin/python3");
  CHECK(interpreter() == "/b/python3");
  machine.programs.erase("/b/python3");
  CHECK(interpreter() == "/v/bin/python3");
  machine.programs.erase("/v/bin/python3");
  CHECK(interpreter() == "/a/python");
  machine.variables["PYTHON_EXEC"] = "tool";
  CHECK(interpreter() == "tool");
  CHECK(machine.job({"train.py"}).spec.interpreter_given);
}

TEST_CASE("program: several workers cannot read one standard input") {
  FakeMachine machine;
  machine.programs = {"/usr/bin/python3"};
  machine.variables["PATH"] = "/usr/bin";
  CHECK(machine.job({"-"}).spec.script == "-");
  CHECK(machine.job({"--nproc-per-node=2", "-m", "-"}).spec.script == "-");
  const auto refused = machine.run({"--nproc-per-node=2", "-"});
  REQUIRE_FALSE(refused.has_value());
  CHECK(refused.error().exit_code == 2);
  CHECK(
      refused.error().text.starts_with("the script - is standard input, which only one of the 2"));
}

TEST_CASE("program: called by its path, it takes the interpreter beside it") {
  FakeMachine machine;
  machine.called_as = "/v/bin/torchrun";
  machine.programs = {"/usr/bin/python3", "/v/bin/python3", "/v/bin/torchrun"};
  machine.variables["VIRTUAL_ENV"] = "/other";
  const auto interpreter = [&] { return machine.job({"train.py"}).spec.interpreter; };
  CHECK(interpreter() == "/v/bin/python3");
  machine.programs = {"/usr/bin/python3", "/v/bin/python"};
  CHECK(interpreter() == "/v/bin/python");
  machine.programs = {"/usr/bin/python3"};
  CHECK(interpreter() == "/usr/bin/python3");
}

TEST_CASE("program: found in PATH, it takes the interpreter of its environment only") {
  FakeMachine machine;
  machine.programs = {"/v/bin/python3", "/usr/bin/python3", "/usr/bin/elastrun"};
  machine.variables["PATH"] = "/v/bin:/usr/bin";
  const auto interpreter = [&] { return machine.job({"train.py"}).spec.interpreter; };
  CHECK_MESSAGE(interpreter() == "/v/bin/python3", "of the active environment");
  machine.variables["PATH"] = "/usr/bin:/v/bin";
  machine.programs = {"/usr/bin/python3", "/v/bin/python3", "/v/bin/elastrun"};
  CHECK(interpreter() == "/usr/bin/python3");
  for (const char* mark : {"/v/bin/../pyvenv.cfg", "/v/bin/../conda-meta"}) {
    machine.existing = {"train.py", mark};
    CHECK_MESSAGE(interpreter() == "/v/bin/python3", "as torchrun's first line says");
  }
}

TEST_CASE("program: srun calls by the path that PATH gives, which means no other interpreter") {
  FakeMachine machine;
  machine.called_as = "/usr/bin/elastrun";
  machine.programs = {"/v/bin/python3", "/usr/bin/python3", "/usr/bin/elastrun"};
  machine.variables["PATH"] = "/v/bin:/usr/bin";
  const auto interpreter = [&] { return machine.job({"train.py"}).spec.interpreter; };
  CHECK_MESSAGE(interpreter() == "/v/bin/python3", "of the active environment");
  machine.variables["PATH"] = "/v/bin";
  CHECK_MESSAGE(interpreter() == "/usr/bin/python3", "the path was chosen by somebody");
}

TEST_CASE("program: Windows' line end after the interpreter of a script is named") {
  FakeMachine machine;
  machine.programs = {"./x.sh"};
  machine.files["./x.sh"] = "#!/usr/bin/env bash\r\necho\r\n";
  const auto warnings = machine.job({"--no-python", "./x.sh"}).warnings;
  REQUIRE(warnings.size() == 1);
  CHECK(
      warnings[0].starts_with("the first line of './x.sh', '#!/usr/bin/env bash', ends in CR LF"));
  machine.files["./x.sh"] = "#!/usr/bin/env bash\necho\r\n";
  CHECK(machine.job({"--no-python", "./x.sh"}).warnings.empty());
}

TEST_CASE("program: a missing interpreter is said before anything starts") {
  FakeMachine machine;
  machine.programs.clear();
  CHECK(machine.refusal({"train.py"}).starts_with("1: no python3 and no python in PATH"));
  machine.variables["PYTHON_EXEC"] = "/opt/py";
  CHECK(machine.refusal({"train.py"}) ==
        "1: cannot run the interpreter '/opt/py': No such file or directory");
  machine.variables["PYTHON_EXEC"] = "";
  CHECK(machine.refusal({"train.py"}) == "1: PYTHON_EXEC is empty");
}

TEST_CASE("program: a program must be there and executable") {
  FakeMachine machine;
  machine.programs = {"/bin/echo"};
  machine.existing = {"./plain.txt"};
  CHECK(machine.refusal({"--no-python", "echo"}) == "accepted");
  CHECK(machine.refusal({"--no-python", "./nothing"}) ==
        "1: cannot run the program './nothing': No such file or directory");
  CHECK(machine.refusal({"--no-python", "nothing"}) ==
        "1: cannot run the program 'nothing': No such file or directory");
  CHECK(machine.refusal({"--no-python", "./plain.txt"}) ==
        "1: cannot run the program './plain.txt': Permission denied");
}

TEST_CASE("program: where other nodes wait for this one, it lives to tell them") {
  FakeMachine machine;
  machine.programs = {"/bin/echo"};
  const std::string text = "cannot run the program './nothing': No such file or directory";
  const auto job = machine.job(
      {"--nnodes=1:2", "--rdzv-backend=c10d", "--rdzv-endpoint=n1", "--no-python", "./nothing"});
  CHECK(job.spec.cannot_start == text);
  REQUIRE(job.refusal);
  CHECK(job.refusal->text == text);
  for (const char* more : {"--nnodes=1", "--rdzv-backend=mine", "--standalone", "--dry-run"}) {
    CAPTURE(more);
    CHECK(machine
              .refusal({"--nnodes=1:2", "--rdzv-backend=c10d", "--rdzv-endpoint=n1", more,
                        "--no-python", "./nothing"})
              .starts_with("1: "));
  }
}

TEST_CASE("program: a missing script is a warning, because Python fails by itself") {
  FakeMachine machine;
  CHECK(machine.job({"missing.py"}).warnings ==
        Words{"the script 'missing.py' does not exist in the current directory"});
  CHECK(machine.job({"/missing.py"}).warnings == Words{"the script '/missing.py' does not exist"});
  for (const Words& words :
       {Words{"train.py"}, Words{"-"}, Words{"-m", "missing"}, Words{"job$local_rank.py"}}) {
    CHECK(machine.job(words).warnings.empty());
  }
  machine.variables["PYTHON_EXEC"] = "python3";
  CHECK(machine.job({"some.script"}).warnings.empty());
}

}  // namespace elastrun::spec
