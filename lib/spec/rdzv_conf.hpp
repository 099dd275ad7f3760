// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "spec/override.hpp"
#include "spec/rendezvous_config.hpp"

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace elastrun::spec {

using RdzvConf = std::map<std::string, std::string>;

/// One part per entry, "key=value"; the first `=` splits, blanks around both are dropped, the last
/// of equal keys counts. Fails with torchrun's texts and exit code 1.
Answer<RdzvConf> parse_rdzv_conf(const std::vector<std::string>& parts);
/// The same for the text of --rdzv-conf; blank text means no entries.
Answer<RdzvConf> parse_rdzv_conf(std::string_view text);

/// The same parts as one text, to be shown: with "***" in place of a password.
std::string masked(std::vector<std::string> parts);

/// Checks the keys and values that `backend` reads. Keys that are never read are named in
/// `warnings` with the nearest one that is read. Backends that are not built in are not checked.
std::optional<Refusal> check_rdzv_conf(const RdzvConf& conf, std::string_view backend,
                                       std::vector<std::string>& warnings);

/// What the built-in backends use of it: the only place where values become numbers and times.
RendezvousConfig read_rendezvous_config(const RdzvConf& conf);

/// All keys that some built-in backend reads.
std::vector<std::string> rdzv_conf_keys();

}  // namespace elastrun::spec
