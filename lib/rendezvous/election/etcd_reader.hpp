// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/error.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

/// What etcd's v3 JSON gateway asks and answers (etcd.io, "gRPC gateway"; integers of 64 bits are
/// texts there, bytes are base64, zeros are left out). Pure. Answers are read as hostile: what is
/// not understood is Protocol, an error that the server reports is Io, or Usage if a retry is
/// useless.
namespace elastrun::rendezvous::etcd {

struct Entry {
  std::string value;
  std::int64_t create_revision = 0;
  bool operator==(const Entry&) const = default;
};
struct LeaseAnswer {
  std::int64_t id = 0;
  std::int64_t ttl = 0;  // seconds; 0: the lease is gone
};

std::string range_request(std::string_view key);
/// Creates the key with value and lease if it does not exist, and tells what is there otherwise.
std::string create_request(std::string_view key, std::string_view value, std::int64_t lease);
/// Writes `key` if the key `guard` still has that create revision.
std::string guarded_put_request(std::string_view guard, std::int64_t create_revision,
                                std::string_view key, std::string_view value, std::int64_t lease);
/// Deletes `key` under the same condition.
std::string guarded_delete_request(std::string_view guard, std::int64_t create_revision,
                                   std::string_view key);
std::string grant_request(std::int64_t ttl);
std::string lease_request(std::int64_t id);  // keep alive, revoke
std::string login_request(std::string_view user, std::string_view password);

Result<std::optional<Entry>> read_range(std::string_view text);
/// Of create_request: the entry that is there now. Its create revision is the epoch.
Result<std::optional<Entry>> read_create(std::string_view text, std::string_view value);
/// Of guarded_put_request: whether it was written.
Result<bool> read_guarded_put(std::string_view text);
Result<LeaseAnswer> read_lease(std::string_view text);
Result<std::string> read_token(std::string_view text);
/// The error that a status other than 200 comes with. `bad_token`: log in again and repeat.
/// `unavailable`: this member cannot answer now, another one may.
struct Refused {
  Error error;
  bool bad_token = false;
  bool unavailable = false;
};
Refused read_refusal(int status, std::string_view text);

}  // namespace elastrun::rendezvous::etcd
