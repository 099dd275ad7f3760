// SPDX-License-Identifier: Apache-2.0
#include "install_into.hpp"

#include <filesystem>
#include <fmt/format.h>
#include <unistd.h>

namespace elastrun {
namespace {

namespace fs = std::filesystem;

std::unexpected<Error> cannot(const fs::path& path, const std::error_code& error) {
  return fail(Code::Io,
              fmt::format("--install-into: cannot make {}: {}", path.string(), error.message()));
}

/// Under another name first: a pod that was started again may run what is there.
template <class Make>
Status put(const fs::path& to, Make make) {
  fs::path draft = to;
  draft += fmt::format(".{}", ::getpid());
  std::error_code error, ignored;
  // One that was killed may have had this number.
  fs::remove(draft, ignored);
  make(draft, error);
  // In one step; to write into a program that runs fails with ETXTBSY (open(2)).
  if (!error) fs::rename(draft, to, error);
  if (!error) return {};
  fs::remove(draft, ignored);
  return cannot(to, error);
}

Status put_copy(const fs::path& from, const fs::path& to) {
  return put(to, [&from](const fs::path& draft, std::error_code& error) {
    fs::copy_file(from, draft, error);
    // For the user of the other container, whatever the umask and the user of this one.
    constexpr auto kReadable = fs::perms::group_read | fs::perms::others_read;
    if (!error) fs::permissions(draft, kReadable, fs::perm_options::add, error);
  });
}

/// Each folder that is new can be entered by that user, too.
Status make_folder(const fs::path& path) {
  std::error_code error;
  if (path.empty() || fs::is_directory(path, error)) return {};
  if (auto done = make_folder(path.parent_path()); !done) return done;
  if (fs::create_directory(path, error)) {
    constexpr auto kOpen = fs::perms::group_read | fs::perms::group_exec | fs::perms::others_read |
                           fs::perms::others_exec;
    fs::permissions(path, kOpen, fs::perm_options::add, error);
  }
  if (error) return cannot(path, error);
  return {};
}

/// Copies the package without what Python has compiled meanwhile.
Status copy_package(const fs::path& from, const fs::path& to) {
  std::error_code error;
  if (auto done = make_folder(to); !done) return done;
  for (const auto& entry : fs::directory_iterator(from, error)) {
    const auto name = entry.path().filename();
    // Bytecode is of the Python that wrote it, and each writes it anyway.
    if (name == "__pycache__") continue;
    const auto done = entry.is_directory() ? copy_package(entry.path(), to / name)
                                           : put_copy(entry.path(), to / name);
    if (!done) return done;
  }
  if (error) return cannot(to, error);
  return {};
}

}  // namespace

Status install_into(const std::string& folder, const std::string& program) {
  const fs::path bin = fs::path(folder) / "bin", own = program;
  std::error_code error;
  if (auto done = make_folder(bin); !done) return done;
  if (fs::equivalent(bin, own.parent_path(), error)) {
    return fail(Code::Usage, fmt::format("--install-into {}: this program is there", folder));
  }
  if (auto done = put_copy(own, bin / "elastrun"); !done) return done;
  const auto beside = own.parent_path() / "elastrunctl";
  if (fs::exists(beside, error)) {
    if (auto done = put_copy(beside, bin / "elastrunctl"); !done) return done;
  }
  const auto package = own.parent_path().parent_path() / "share/elastrun/python";
  if (fs::exists(package, error)) {
    if (auto done = copy_package(package, fs::path(folder) / "share/elastrun/python"); !done) {
      return done;
    }
  }
  // Relative, since the folder has another path in the container that uses it.
  return put(bin / "torchrun", [](const fs::path& draft, std::error_code& why) {
    fs::create_symlink("elastrun", draft, why);
  });
}

}  // namespace elastrun
