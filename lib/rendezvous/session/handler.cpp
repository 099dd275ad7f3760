// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/session/handler.hpp"

#include "core/text.hpp"
#include "spec/agreed_rules.hpp"

#include <algorithm>
#include <array>
#include <fmt/format.h>

namespace elastrun::rendezvous {
namespace {

std::map<std::string, HandlerCreator>& registry() {
  // Within a function: programs may register from initialisers of globals, and those of several
  // files run in no defined order.
  static std::map<std::string, HandlerCreator> creators;
  return creators;
}

std::unexpected<Error> no_valid(const std::string& key, std::string_view kind) {
  return fail(Code::Usage,
              fmt::format("The rendezvous configuration option '{}' does not represent a valid {} "
                          "value.",
                          key, kind));
}

}  // namespace

Status RendezvousParameters::check() const {
  if (backend.empty()) {
    return fail(Code::Usage, "A rendezvous backend needs a name, and this one is empty.");
  }
  if (min_nodes < 1) {
    return fail(Code::Usage,
                fmt::format("The minimum number of nodes has to be 1 or more, not {}.", min_nodes));
  }
  if (max_nodes < min_nodes) {
    return fail(Code::Usage,
                fmt::format("The maximum number of nodes ({}) is below the minimum ({}).",
                            max_nodes, min_nodes));
  }
  return {};
}

std::string RendezvousParameters::get(const std::string& key, std::string otherwise) const {
  const auto found = conf.find(key);
  return found == conf.end() ? std::move(otherwise) : found->second;
}

Result<std::optional<bool>> RendezvousParameters::get_as_bool(const std::string& key) const {
  const auto found = conf.find(key);
  if (found == conf.end()) return std::nullopt;
  const std::string text = to_lower(found->second);
  const auto is = [&text](std::string_view word) { return text == word; };
  // The words that RendezvousParameters.get_as_bool of torch takes.
  if (std::ranges::any_of(std::array{"1", "true", "t", "yes", "y"}, is)) return true;
  if (std::ranges::any_of(std::array{"0", "false", "f", "no", "n"}, is)) return false;
  return no_valid(key, "boolean");
}

Result<std::optional<std::int64_t>> RendezvousParameters::get_as_int(const std::string& key) const {
  const auto found = conf.find(key);
  if (found == conf.end()) return std::nullopt;
  const auto number = parse_int(found->second);
  if (!number) return no_valid(key, "integer");
  return number;
}

Result<RendezvousInfo> BuiltInHandler::next_rendezvous() {
  return fail(Code::Usage, fmt::format("the rendezvous backend {} works inside an agent only: give "
                                       "its handler to a WorkerSpec",
                                       parameters_.backend));
}

Status register_rendezvous_handler(const std::string& backend, HandlerCreator creator) {
  if (backend.empty()) {
    return fail(Code::Usage, "A rendezvous backend needs a name, and this one is empty.");
  }
  if (is_built_in(backend) || !registry().emplace(backend, std::move(creator)).second) {
    return fail(Code::Usage, fmt::format("The rendezvous backend '{}' cannot be registered as it "
                                         "is already registered.",
                                         backend));
  }
  return {};
}

Result<Handler> get_rendezvous_handler(const RendezvousParameters& parameters) {
  if (const auto sound = parameters.check(); !sound) return std::unexpected(sound.error());
  if (is_built_in(parameters.backend)) return std::make_shared<BuiltInHandler>(parameters);
  const auto found = registry().find(parameters.backend);
  if (found == registry().end()) {
    return fail(Code::Usage, fmt::format("The rendezvous backend '{}' is not registered, and it is "
                                         "none of those that are built in.",
                                         parameters.backend));
  }
  auto handler = found->second(parameters);
  if (!handler) return std::unexpected(handler.error());
  // As torch: a creator that was registered may return anything.
  if (!*handler || (*handler)->get_backend() != parameters.backend) {
    return fail(Code::Internal,
                fmt::format("The rendezvous backend '{}' does not match the "
                            "requested backend '{}'.",
                            *handler ? (*handler)->get_backend() : "", parameters.backend));
  }
  return handler;
}

bool is_built_in(std::string_view backend) {
  return std::ranges::find(spec::backend::kBuiltIn, backend) != spec::backend::kBuiltIn.end();
}

std::vector<std::string> registered_backends() {
  std::vector<std::string> names;
  for (const auto& [name, creator] : registry()) names.push_back(name);
  return names;
}

}  // namespace elastrun::rendezvous
