// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "spec/agreed_rules.hpp"
#include "workers/failure.hpp"

#include <string>

namespace elastrun::workers {

/// What ended it, for the restart policy. Pure.
spec::CauseClass class_of(const Failure& failure);

/// What is alike when the same happens again: the exception's type, or the signal, and where in the
/// user's program: "ValueError@train.py:7", "SIGSEGV@model.py:12", "exit 3". Messages are left out,
/// since they name steps, addresses and times. Pure.
std::string fingerprint_of(const Failure& failure);

}  // namespace elastrun::workers
